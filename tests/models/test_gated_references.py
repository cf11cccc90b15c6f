"""Independent oracles: fla-core's naive GLA and RWKV-6 give the same outputs, final state and gradients."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from benchmarks.others import fla_gla, fla_rwkv6
from models.kernels import CPU_KERNELS
from models.scans.gated import GATED_SCANS
from tests.models.makers import relative_error
from tests.models.test_gated import gated_inputs

THEIRS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {"gla": fla_gla, "rwkv6": fla_rwkv6}


def ours(name: str, family: str, inputs: list[Tensor]) -> tuple[Tensor, Tensor]:
    q, k, v, g, h0, *bonus = inputs
    if family == "gla":
        return GATED_SCANS[name](q, k, v, g, h0, scale=q.shape[3] ** -0.5)
    return GATED_SCANS[name](q, k, v, g, h0, bonus_HK=bonus[0])


def with_gradients(outputs: tuple[Tensor, Tensor], inputs: list[Tensor]) -> list[Tensor]:
    o, final = outputs
    loss = (o * torch.cos(o)).sum() + (final * torch.sin(final)).sum()
    return [o, final, *torch.autograd.grad(loss, inputs)]


@pytest.mark.parametrize("family", THEIRS)
@pytest.mark.parametrize("name", CPU_KERNELS)
@pytest.mark.parametrize("fastest", [0.1, 8.0, 60.0])
def test_outputs_states_and_gradients_equal_those_of_fla(family: str, name: str, fastest: float) -> None:
    inputs = gated_inputs(family, length=70, keys=8, values=6, fastest=fastest, dtype=torch.float32)
    found = with_gradients(ours(name, family, inputs), inputs)
    right = with_gradients(THEIRS[family](*inputs), inputs)
    assert max(relative_error(a, b) for a, b in zip(found, right, strict=True)) < 1e-4
