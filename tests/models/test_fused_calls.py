"""What is ours around the GPU libraries: limits, resets, layouts and the initial state of Mamba-1, without a GPU.

Where the library is CUDA alone, a loop that has its signature and its rules stands in for it: wrong layouts fail, it
starts from zero, and its final state has no gradient. The kernels themselves run in tests/models/fused (Triton's
interpreter) and in test_cuda.py.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from models import conv_fused
from models.conv import causal_conv_silu
from models.conv_fused import causal_conv_silu_fused
from models.errors import ModelError
from models.norms_fused import gated_readout_fused
from models.scans import selective_fused as mamba1
from models.scans.fused import OFFSETS, check_call, check_size, check_triton, in_segments, library
from models.scans.gated import gated_fused, gated_naive
from models.scans.selective import selective_fused, selective_naive
from models.scans.ssd import ssd_fused
from tests.models.makers import relative_error
from tests.models.test_selective_prefix import prefix_inputs

FP32 = 1e-5
WRONG = ["3.4.0", "3.5.1", "3.6.0", "3.7.0", "3.7.0+git1234"]
RIGHT = ["3.3.1", "3.7.1", "3.9.0", "3.10.0", "4.0"]


@pytest.mark.parametrize("version", WRONG)
def test_triton_versions_with_wrong_gradients_on_hopper_are_refused_by_name(version: str) -> None:
    with pytest.raises(ModelError, match=rf"Triton {version.replace('+', '.')} .* install triton 3.7.1 or newer"):
        check_triton(version, (9, 0))
    check_triton(version, (8, 0))


@pytest.mark.parametrize("version", RIGHT)
def test_other_versions_run_on_hopper(version: str) -> None:
    check_triton(version, (9, 0))


def test_a_call_is_refused_from_the_first_size_whose_offsets_wrap() -> None:
    check_size("mamba2", 1, 2**20, {"inputs": OFFSETS - 1, "chunk states": 7})
    with pytest.raises(ModelError) as error:
        check_size("mamba2", 2, 2**19, {"inputs": 7, "chunk states": OFFSETS})
    assert str(error.value) == (
        "a call of 2 x 524288 tokens makes the fused scan of mamba2 index 2,147,483,648 chunk states, and its 32-bit "
        "offsets wrap at 2,147,483,648: give a call at most 1,048,575 tokens, by trial.micro_rows or eval.chunk."
    )


def test_the_limit_follows_from_the_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.scans.ssd_fused.check_call", lambda *_, **__: None)
    # 370m: 32 heads of 64 channels and 128 columns. Tensors of one element, seen as large.
    x = torch.zeros(1).expand(8, 2**17, 32, 64)
    dt, columns = torch.zeros(1).expand(8, 2**17, 32), torch.zeros(1).expand(8, 2**17, 1, 128)
    with pytest.raises(
        ModelError, match=r"8 x 131072 tokens .* index 2,147,483,648 inputs, .* at most 1,048,575 tokens"
    ):
        ssd_fused(x, dt, torch.zeros(32), columns, columns)


def test_a_gate_that_is_part_of_wider_rows_counts_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.norms_fused.check_call", lambda *_, **__: None)
    # 370m: 2048 channels, and their gate in rows of 4384.
    v = torch.zeros(1).expand(8, 2**16, 2048)
    z = torch.empty_strided(v.shape, (2**16 * 4384, 4384, 1), device="meta")
    with pytest.raises(ModelError, match=r"8 x 65536 tokens .* index 2,298,478,592 projected inputs, .* at most 489,"):
        gated_readout_fused(v, z, torch.zeros(2048), 1e-5, 1)


def test_tensors_off_a_gpu_are_refused() -> None:
    with pytest.raises(ModelError, match="model.kernel=chunked"):
        gated_fused(*[torch.zeros(1, 2, 1, 4)] * 4)
    with pytest.raises(ModelError, match="scan of mamba1 runs on a CUDA GPU, and was given tensors on the cpu"):
        check_call("mamba1", torch.zeros(1), triton=False)
    with pytest.raises(ModelError, match=r"scan of mamba1 takes float32 or bfloat16, and was given torch.float64"):
        check_call("mamba1", torch.zeros(1, dtype=torch.float64), triton=False)


def test_a_library_that_cannot_be_imported_is_named_with_the_reason() -> None:
    with pytest.raises(
        ModelError, match=r"needs a_scan of no_such_library, .*No module named 'no_such_library'.*extra"
    ):
        library("no_such_library", "a_scan")
    with pytest.raises(ModelError, match="no attribute 'a_scan'"):
        library("math", "a_scan")


@pytest.mark.parametrize("has_state", [True, False])
def test_cutting_at_resets_is_what_the_loop_does_with_them(has_state: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v, g = torch.randn(4, 3, 9, 2, 4, generator=generator, dtype=torch.float64).unbind()
    h0 = torch.randn(3, 2, 4, 4, generator=generator, dtype=torch.float64) if has_state else None
    reset = torch.zeros(3, 9, dtype=torch.bool)
    reset[0, 0] = reset[1, 4] = reset[1, 5] = reset[2, 8] = True

    def run(series: Sequence[Tensor], state: Tensor | None) -> tuple[Tensor, Tensor]:
        q, k, v, g = series
        return gated_naive(q, k, v, g, state)

    found, right = in_segments(run, [q, k, v, -g.abs()], h0, reset), gated_naive(q, k, v, -g.abs(), h0, reset)
    for one, other in zip(found, right, strict=True):
        assert relative_error(one, other) < 1e-14


def selective_scan_fn(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, *, return_last_state: bool
) -> tuple[Tensor, Tensor]:
    """As mamba_ssm's: (B, D, T), one dtype for all series, from zero, a final state without gradient."""
    assert return_last_state
    assert all(value.is_contiguous() and value.dtype == torch.float32 for value in (u, delta, A, B, C))
    u_BTD, dt_BTD, B_BTN, C_BTN = (value.transpose(1, 2) for value in (u, delta, B, C))
    y, final = selective_naive(u_BTD, dt_BTD, A, B_BTN, C_BTN)
    return y.transpose(1, 2), final.detach()


@pytest.fixture
def mamba1_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mamba1, "library", lambda module, name: selective_scan_fn)
    monkeypatch.setattr(mamba1, "check_call", lambda *_, **__: None)


def outcome(scan: Callable[..., tuple[Tensor, Tensor]], inputs: list[Tensor], *rest: Any) -> list[Tensor]:
    leaves = [value.detach().requires_grad_() for value in inputs]
    y, final = scan(*leaves, *rest)
    generator = torch.Generator().manual_seed(5)
    weights = [torch.randn(v.shape, generator=generator).to(v.dtype) for v in (y, final)]
    return [y, final, *torch.autograd.grad((y, final), leaves, weights)]


def in_float64(inputs: list[Tensor]) -> list[Tensor]:
    return [value.detach().double() for value in inputs]


@pytest.mark.parametrize("with_resets", [False, True])
@pytest.mark.parametrize("count", [5, 6])
def test_mamba1_has_its_state_and_all_gradients(mamba1_kernel: None, count: int, with_resets: bool) -> None:
    inputs = [value.detach().float() for value in prefix_inputs(21)][:count]
    reset = None
    if with_resets:
        reset = torch.zeros(2, 21, dtype=torch.bool)
        reset[0, 0] = reset[1, 7] = True
    rest = (None,) * (6 - count) + (reset,)
    found = outcome(selective_fused, inputs, *rest)
    for one, right in zip(found, outcome(selective_naive, in_float64(inputs), *rest), strict=True):
        assert one.dtype == torch.float32
        assert relative_error(one, right) < FP32


def test_mamba1_in_bf16_computes_in_fp32(mamba1_kernel: None) -> None:
    u, dt, A, B, C, h0 = (value.detach().float() for value in prefix_inputs(21))
    low = [u.bfloat16(), dt, A, B.bfloat16(), C.bfloat16(), h0]
    with torch.no_grad():
        y, final = selective_fused(*low)
        right_y, right_final = selective_naive(*in_float64(low))
    assert y.dtype == torch.bfloat16
    assert relative_error(final, right_final) < FP32
    assert relative_error(y, right_y) < 2**-8


def test_mamba1_costs_no_added_tokens_where_nothing_asks_for_them(
    mamba1_kernel: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = []

    def counted(u: Tensor, *rest: Any, **options: Any) -> tuple[Tensor, Tensor]:
        lengths.append(u.shape[2])
        return selective_scan_fn(u, *rest, **options)

    monkeypatch.setattr(mamba1, "library", lambda module, name: counted)
    u, dt, A, B, C, h0 = (value.detach().float() for value in prefix_inputs(21))
    with torch.no_grad():
        selective_fused(u, dt, A, B, C)
        selective_fused(u, dt, A, B, C, h0)
    selective_fused(u.requires_grad_(), dt, A, B, C, h0)
    assert lengths == [21, 21 + 5, 21 + 2 * 5]


def causal_conv1d_fn(
    x: Tensor, weight: Tensor, bias: Tensor, *, initial_states: Tensor | None, activation: str
) -> Tensor:
    """As causal-conv1d's, with what it checks of a channels-last call."""
    assert activation == "silu"
    for value in (x, initial_states):
        if value is not None:
            assert value.stride(1) == 1
            assert value.shape[1] % 8 == 0 and value.stride(0) % 8 == 0 and value.stride(2) % 8 == 0
            assert value.dtype == x.dtype
    before = x.new_zeros(*x.shape[:2], 3) if initial_states is None else initial_states
    return F.silu(F.conv1d(torch.cat([before, x], 2), weight[:, None], bias, groups=x.shape[1]))


@pytest.fixture
def conv_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_fused, "library", lambda module, name: causal_conv1d_fn)
    monkeypatch.setattr(conv_fused, "check_call", lambda *_, **__: None)


@pytest.mark.parametrize("length", [1, 2, 3, 11])
@pytest.mark.parametrize("offset", [0, 4, 8])
@pytest.mark.parametrize("has_state", [True, False])
def test_the_convolution_has_the_kernels_layout_and_the_plain_ones_numbers(
    conv_kernel: None, length: int, offset: int, has_state: bool
) -> None:
    generator = torch.Generator().manual_seed(length)
    # Part of a wider projection, as a mixer gives it: rows of 40 channels, 16 of them for the convolution.
    wide = torch.randn(2, length, 40, generator=generator, dtype=torch.float64).requires_grad_()
    weight, bias = torch.randn(16, 1, 4, generator=generator).double(), torch.randn(16, generator=generator).double()
    state = torch.randn(2, 16, 3, generator=generator).double().requires_grad_() if has_state else None
    leaves = [wide, weight.requires_grad_(), bias.requires_grad_()] + ([] if state is None else [state])
    results = []
    for convolve in (causal_conv_silu_fused, causal_conv_silu):
        y, after = convolve(wide[..., offset : offset + 16], weight, bias, state)
        loss = (y * torch.arange(16)).sum() + (after**2).sum()
        results.append([y, after, *torch.autograd.grad(loss, leaves)])
    for found, right in zip(*results, strict=True):
        torch.testing.assert_close(found, right)


def test_the_convolution_with_resets_is_the_plain_one(conv_kernel: None) -> None:
    x, weight, bias, state = torch.randn(1, 6, 8), torch.randn(8, 1, 4), torch.randn(8), torch.randn(1, 8, 3)
    reset = torch.zeros(1, 6, dtype=torch.bool)
    reset[0, 2] = True
    for found, right in zip(
        causal_conv_silu_fused(x, weight, bias, state, reset),
        causal_conv_silu(x, weight, bias, state, reset),
        strict=True,
    ):
        assert torch.equal(found, right)


def test_channels_that_the_convolution_kernel_does_not_know_are_refused(conv_kernel: None) -> None:
    with pytest.raises(ModelError, match="multiples of 8 channels and 2 to 4 taps, not 12 channels and 5 taps"):
        causal_conv_silu_fused(torch.zeros(1, 2, 12), torch.zeros(12, 1, 5), torch.zeros(12))
