"""An initial state given to a scan that starts from zero, against the scan that knows one."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from models.scans.selective import selective_naive
from models.scans.selective_prefix import with_initial_state
from tests.models.makers import relative_error

NAMES = ("y", "final state", "du", "ddt", "dA", "dB", "dC", "dh0")
Scan = Callable[..., tuple[Tensor, Tensor]]


def prefix_inputs(length: int = 21, fastest: float = 2.0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    u = torch.randn(2, length, 6, generator=generator, dtype=torch.float64)
    dt = torch.rand(2, length, 6, generator=generator, dtype=torch.float64)
    A = -torch.rand(6, 5, generator=generator, dtype=torch.float64) * fastest
    B, C = torch.randn(2, 2, length, 5, generator=generator, dtype=torch.float64)
    h0 = torch.randn(2, 6, 5, generator=generator, dtype=torch.float64)
    return [value.to(dtype).requires_grad_() for value in (u, dt, A, B, C, h0)]


def from_zero(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    """A kernel without initial state."""
    return selective_naive(u, dt, A, B, C)


def without_gradient_of_the_final_state(
    u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor
) -> tuple[Tensor, Tensor]:
    """A kernel as mamba_ssm's: its final state has no gradient."""
    y, final = selective_naive(u, dt, A, B, C)
    return y, final.detach()


def prefixed(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    u, dt, A, B, C, h0 = inputs
    return with_initial_state(from_zero, u, dt, A, B, C, h0)


def prefixed_and_read(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    u, dt, A, B, C, h0 = inputs
    return with_initial_state(without_gradient_of_the_final_state, u, dt, A, B, C, h0, read_final=True)


def outputs_and_gradients(scan: Scan, inputs: list[Tensor]) -> list[Tensor]:
    y, final = scan(*inputs)
    generator = torch.Generator().manual_seed(5)
    weights = [torch.randn(v.shape, generator=generator, dtype=torch.float64).to(v.dtype) for v in (y, final)]
    return [y, final, *torch.autograd.grad((y, final), inputs, weights)]


def errors(scan: Scan, inputs: list[Tensor]) -> dict[str, float]:
    right = outputs_and_gradients(selective_naive, [value.detach().double().requires_grad_() for value in inputs])
    found = outputs_and_gradients(scan, inputs)
    return {name: relative_error(a, b) for name, a, b in zip(NAMES, found, right, strict=True)}


@pytest.mark.parametrize("scan", [prefixed, prefixed_and_read])
@pytest.mark.parametrize("length", [1, 21])
@pytest.mark.parametrize("fastest", [1e-3, 2.0, 300.0])
def test_a_prefix_equals_the_initial_state_with_all_gradients(scan: Scan, length: int, fastest: float) -> None:
    found = errors(scan, prefix_inputs(length, fastest))
    assert max(found.values()) < 1e-12, found


@pytest.mark.parametrize("scan", [prefixed, prefixed_and_read])
def test_gradcheck_through_the_prefix(scan: Scan) -> None:
    inputs = [value.detach()[..., :2, :2].requires_grad_() for value in prefix_inputs(2)]
    assert torch.autograd.gradcheck(scan, inputs)


def test_fp32_error_is_that_of_the_scan_itself() -> None:
    inputs = prefix_inputs(dtype=torch.float32)
    found, plain = errors(prefixed, inputs), errors(selective_naive, inputs)
    assert max(found.values()) < 1e-6, found
    for name in NAMES:
        assert found[name] <= 2 * plain[name] + 1e-7, (name, found[name], plain[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_state_arrives_to_the_bit(dtype: torch.dtype) -> None:
    u, dt, A, B, C, h0 = (value.detach() for value in prefix_inputs(length=1, dtype=dtype))
    nothing = torch.zeros_like(u)
    slow = torch.full_like(A, -1e-30)
    _, final = with_initial_state(from_zero, nothing, dt, slow, B, C, h0)
    assert torch.equal(final, h0)


def test_two_tokens_per_column_carry_the_state_where_inputs_are_bf16() -> None:
    u, dt, A, B, C, h0 = (value.detach() for value in prefix_inputs(dtype=torch.float32))
    low_u, low_B, low_C = u.bfloat16(), B.bfloat16(), C.bfloat16()
    nothing = torch.zeros_like(low_u)
    h0.requires_grad_()
    _, final = with_initial_state(from_zero, nothing[:, :1], dt[:, :1] * 0, A, low_B[:, :1], low_C[:, :1], h0)
    assert 2**-20 < relative_error(final, h0) < 2**-16
    y, final = with_initial_state(from_zero, low_u, dt, A, low_B, low_C, h0)
    right_y, right_final = selective_naive(low_u.float(), dt, A, low_B.float(), low_C.float(), h0)
    assert y.dtype == torch.bfloat16
    assert relative_error(y, right_y) < 2**-8
    assert relative_error(final, right_final) < 2**-16
    (found,) = torch.autograd.grad(final.square().sum(), h0)
    (right,) = torch.autograd.grad(right_final.square().sum(), h0)
    assert relative_error(found, right) < 2**-8


def test_step_sizes_may_be_bf16_too() -> None:
    u, dt, A, B, C, h0 = (value.detach() for value in prefix_inputs(dtype=torch.float32))
    low = [value.bfloat16() for value in (u, dt, B, C)]

    def in_fp32(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
        return selective_naive(u, dt.float(), A, B, C)

    _, final = with_initial_state(in_fp32, low[0], low[1], A, low[2], low[3], h0)
    _, right = selective_naive(low[0].float(), low[1].float(), A, low[2].float(), low[3].float(), h0)
    assert relative_error(final, right) < 2**-16


def test_half_precision_is_refused_with_what_to_use_instead() -> None:
    u, *others = (value.detach() for value in prefix_inputs(dtype=torch.float32))
    with pytest.raises(ValueError, match=r"u is torch.float16, .* use bfloat16 or float32"):
        with_initial_state(from_zero, u.half(), *others)
