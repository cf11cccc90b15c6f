import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from models.norms import gated_readout, rms_norm


def readout_inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 3, 4, 3), (2, 3, 4, 3), (4,), (2, 3, 12), (12,)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def test_rms_norm_equals_torch() -> None:
    x, weight = torch.randn(2, 3, 8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), F.rms_norm(x, (8,), weight, 1e-5))


def test_rms_norm_gradcheck() -> None:
    inputs = [torch.randn(2, 3, 5, dtype=torch.float64).requires_grad_(), torch.ones(5).double().requires_grad_()]
    assert torch.autograd.gradcheck(lambda x, weight: rms_norm(x, weight, 1e-5), inputs)


def test_rms_norm_leaves_its_input_alone() -> None:
    x = torch.randn(2, 5, requires_grad=True)
    kept = x.detach().clone()
    rms_norm(x, torch.ones(5, requires_grad=True), 1e-5).square().sum().backward()
    assert torch.equal(x.detach(), kept)


@pytest.mark.parametrize("groups", [1, 2])
def test_readout_gates_before_it_normalises_each_group(groups: int) -> None:
    y, x, D, z, weight = readout_inputs()
    gated = ((y + x * D[:, None]).flatten(2) * F.silu(z)).unflatten(-1, (groups, -1))
    right = (gated / (gated.square().mean(-1, keepdim=True) + 1e-5).sqrt()).flatten(2) * weight
    torch.testing.assert_close(gated_readout(y, x, D, z, weight, 1e-5, groups), right)


@pytest.mark.parametrize("groups", [1, 2])
def test_readout_gradcheck(groups: int) -> None:
    assert torch.autograd.gradcheck(
        lambda y, x, D, z, weight: gated_readout(y, x, D, z, weight, 1e-5, groups), readout_inputs()
    )
