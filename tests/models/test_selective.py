"""The blocked selective scan against the loop over time, and the laws that hold for both."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from models.kernels import CPU_KERNELS
from models.scans import selective
from models.scans.selective_chunked import BLOCK_ELEMENTS, plan_blocks
from tests.models.makers import relative_error

Scan = Callable[..., tuple[Tensor, Tensor]]
naive: Scan = selective.selective_naive
chunked: Scan = selective.selective_chunked
SCANS: dict[str, Scan] = {name: selective.SELECTIVE_SCANS[name] for name in CPU_KERNELS}
NAMES = ("y", "final state", "du", "ddt", "dA", "dB", "dC", "dh0")


def selective_inputs(
    rows: int = 2,
    length: int = 12,
    channels: int = 6,
    columns: int = 5,
    slowest: float = 1e-3,
    fastest: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> list[Tensor]:
    """Random u, dt, A, B, C, h0 as leaves; log-decays between -slowest and -fastest, spread over their logarithm."""
    generator = torch.Generator().manual_seed(rows * 1000 + length)

    def between(low: float, high: float, *shape: int) -> Tensor:
        exponents = torch.rand(*shape, generator=generator, dtype=torch.float64)
        return low * (high / low) ** exponents

    u = torch.randn(rows, length, channels, generator=generator, dtype=torch.float64)
    dt = between(slowest**0.5, fastest**0.5, rows, length, channels)
    A = -between(slowest**0.5, fastest**0.5, channels, columns)
    B, C = torch.randn(2, rows, length, columns, generator=generator, dtype=torch.float64)
    h0 = torch.randn(rows, channels, columns, generator=generator, dtype=torch.float64)
    return [value.to(dtype).requires_grad_() for value in (u, dt, A, B, C, h0)]


def outputs_and_gradients(scan: Scan, inputs: list[Tensor], reset: Tensor | None, chunk: int) -> list[Tensor]:
    leaves = [value.detach().requires_grad_() for value in inputs]
    y, final = scan(*leaves, reset, chunk=chunk)
    return [y, final, *torch.autograd.grad((y, final), leaves, weights_like(y, final))]


def weights_like(*values: Tensor) -> list[Tensor]:
    """Gradients to feed in: fixed ones, through which rounding of the outputs does not reach those that come out."""
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(v.shape, generator=generator, dtype=torch.float64).to(v.dtype) for v in values]


def assert_equals_naive(
    inputs: list[Tensor], reset: Tensor | None, chunk: int, tolerance: float, dtype: torch.dtype = torch.float64
) -> None:
    right = outputs_and_gradients(naive, inputs, reset, chunk)
    found = outputs_and_gradients(chunked, [value.to(dtype) for value in inputs], reset, chunk)
    errors = {name: relative_error(a, b) for name, a, b in zip(NAMES, found, right, strict=True)}
    assert max(errors.values()) < tolerance, errors


@pytest.fixture(params=[1, 90, 400, 2**18], ids=lambda elements: f"blocks of {elements}")
def block_elements(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """One channel of one chunk per block; few channels; several rows; everything in one block."""
    elements = int(request.param)
    monkeypatch.setitem(BLOCK_ELEMENTS, "cpu", elements)
    return elements


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BLOCK_ELEMENTS, "cpu", 150)


def test_naive_scan_follows_the_recurrence_written_out_by_hand() -> None:
    u, b, c, dt, A, h0 = 2.0, 3.0, 5.0, 0.5, -1.0, 7.0
    one = torch.ones(1, 2, 1, dtype=torch.float64)
    y, final = naive(u * one, dt * one, A * one[0, :1], b * one, c * one, h0 * one[:, :1])
    first = math.exp(dt * A) * h0 + dt * u * b
    second = math.exp(dt * A) * first + dt * u * b
    torch.testing.assert_close(y.flatten(), torch.tensor([c * first, c * second], dtype=torch.float64))
    torch.testing.assert_close(final.flatten(), torch.tensor([second], dtype=torch.float64))


def test_each_channel_and_column_decays_at_its_own_rate() -> None:
    A = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]], dtype=torch.float64)
    dt = torch.tensor([[[0.5, 0.25]]], dtype=torch.float64)
    nothing, h0 = torch.zeros(1, 1, 2, dtype=torch.float64), torch.ones(1, 2, 2, dtype=torch.float64)
    for scan in SCANS.values():
        _, final = scan(nothing, dt, A, nothing, nothing, h0)
        torch.testing.assert_close(final, torch.tensor([[[-0.5, -1.0], [-0.75, -1.0]]], dtype=torch.float64).exp())


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 40])
def test_chunked_equals_naive_with_all_gradients(length: int, block_elements: int) -> None:
    assert_equals_naive(selective_inputs(rows=3, length=length), None, chunk=16, tolerance=1e-12)


@pytest.mark.parametrize("chunk", [1, 3, 7, 64])
def test_chunk_sizes_change_nothing(chunk: int, small_blocks: None) -> None:
    assert_equals_naive(selective_inputs(rows=3, length=23), None, chunk=chunk, tolerance=1e-12)


@pytest.mark.parametrize(
    ("slowest", "fastest"), [(1e-6, 1e-5), (1e-6, 1e4), (10.0, 300.0), (1e3, 1e4)], ids=lambda decay: f"{decay:.0e}"
)
def test_chunked_equals_naive_at_any_decay(slowest: float, fastest: float, small_blocks: None) -> None:
    inputs = selective_inputs(length=70, slowest=slowest, fastest=fastest)
    assert_equals_naive(inputs, None, chunk=16, tolerance=1e-11)


@pytest.mark.parametrize("fastest", [0.1, 1.0, 80.0, 1e4])
def test_fp32_errors_stay_near_rounding(fastest: float, small_blocks: None) -> None:
    inputs = selective_inputs(length=150, slowest=1e-6, fastest=fastest)
    assert_equals_naive(inputs, None, chunk=16, tolerance=3e-6, dtype=torch.float32)


def test_resets_cut_state_outputs_and_gradients_as_the_loop_does(block_elements: int) -> None:
    reset = torch.rand(3, 50, generator=torch.Generator().manual_seed(1)) < 0.15
    reset[0] = False
    reset[1, 0] = True
    assert_equals_naive(selective_inputs(rows=3, length=50), reset, chunk=16, tolerance=1e-12)


@pytest.mark.parametrize("scan", SCANS.values(), ids=SCANS)
def test_nothing_before_a_reset_reaches_beyond_it(scan: Scan, small_blocks: None) -> None:
    u, dt, A, B, C, h0 = selective_inputs(length=40)
    reset = torch.zeros(2, 40, dtype=torch.bool)
    reset[:, 23] = True
    y, final = scan(u, dt, A, B, C, h0, reset, chunk=16)
    alone, alone_final = scan(u[:, 23:], dt[:, 23:], A, B[:, 23:], C[:, 23:], chunk=16)
    torch.testing.assert_close(y[:, 23:], alone)
    torch.testing.assert_close(final, alone_final)
    before = torch.autograd.grad(y[:, 23:].sum() + final.sum(), (u, dt, B, C, h0))
    for gradient in before[:4]:
        assert not gradient[:, :23].any()
    assert not before[4].any()


def test_gradcheck_including_the_final_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BLOCK_ELEMENTS, "cpu", 8)
    inputs = selective_inputs(rows=1, length=6, channels=2, columns=2)
    assert torch.autograd.gradcheck(lambda *values: chunked(*values, chunk=4), inputs)
    reset = torch.zeros(1, 6, dtype=torch.bool)
    reset[:, 3] = True
    assert torch.autograd.gradcheck(lambda *values: chunked(*values, reset, chunk=4), inputs)


@pytest.mark.parametrize("scan", SCANS.values(), ids=SCANS)
def test_no_initial_state_is_the_zero_state(scan: Scan) -> None:
    *coefficients, h0 = selective_inputs(length=20)
    results = []
    for start in (None, torch.zeros_like(h0)):
        y, final = scan(*coefficients, start, chunk=8)
        results.append([y, final, *torch.autograd.grad((y, final), coefficients, weights_like(y, final))])
    for without, given_zero in zip(*results, strict=True):
        torch.testing.assert_close(without, given_zero, rtol=0, atol=1e-14)


@pytest.mark.parametrize("scan", SCANS.values(), ids=SCANS)
def test_output_is_the_zero_state_output_plus_the_propagated_initial_state(scan: Scan, small_blocks: None) -> None:
    u, dt, A, B, C, h0 = selective_inputs(length=33)
    y, final = scan(u, dt, A, B, C, h0, chunk=16)
    y_zero, final_zero = scan(u, dt, A, B, C, chunk=16)
    propagated = torch.exp(dt.cumsum(1)[..., None] * A) * h0[:, None]
    torch.testing.assert_close(y - y_zero, torch.einsum("btdn,btn->btd", propagated, C))
    torch.testing.assert_close(final - final_zero, propagated[:, -1])


@pytest.mark.parametrize("scan", SCANS.values(), ids=SCANS)
def test_output_and_final_state_are_affine_in_the_initial_state(scan: Scan) -> None:
    *coefficients, one = selective_inputs(length=25)
    other = torch.randn_like(one)
    mixed = scan(*coefficients, 0.3 * one + 0.7 * other, chunk=8)
    apart = zip(scan(*coefficients, one, chunk=8), scan(*coefficients, other, chunk=8), strict=True)
    for found, (from_one, from_other) in zip(mixed, apart, strict=True):
        torch.testing.assert_close(found, 0.3 * from_one + 0.7 * from_other)


@settings(max_examples=15)
@given(length=st.integers(2, 40), part=st.floats(0.01, 0.99), chunk=st.sampled_from([1, 3, 16, 64]))
def test_cutting_anywhere_and_carrying_equals_one_pass(length: int, part: float, chunk: int) -> None:
    cut = min(length - 1, max(1, int(part * length)))
    u, dt, A, B, C, h0 = selective_inputs(length=length)
    whole, final = chunked(u, dt, A, B, C, h0, chunk=chunk)
    head, middle = chunked(u[:, :cut], dt[:, :cut], A, B[:, :cut], C[:, :cut], h0, chunk=chunk)
    tail, end = chunked(u[:, cut:], dt[:, cut:], A, B[:, cut:], C[:, cut:], middle, chunk=chunk)
    assert relative_error(torch.cat([head, tail], 1), whole) < 1e-12
    assert relative_error(end, final) < 1e-12
    leaves = (u, dt, A, B, C, h0)
    one_pass = torch.autograd.grad(whole.square().sum() + final.sum(), leaves)
    in_parts = torch.autograd.grad(head.square().sum() + tail.square().sum() + end.sum(), leaves)
    for found, right in zip(in_parts, one_pass, strict=True):
        assert relative_error(found, right) < 1e-11


def test_a_detached_final_state_gives_the_gradients_of_the_outputs_alone(small_blocks: None) -> None:
    def gradients(scan: Scan) -> tuple[Tensor, ...]:
        inputs = selective_inputs(length=40)
        y, _ = scan(*inputs, chunk=16)
        return torch.autograd.grad(y.square().sum(), inputs)

    for found, right in zip(gradients(chunked), gradients(naive), strict=True):
        assert relative_error(found, right) < 1e-12


def test_the_final_state_alone_gives_its_gradients(small_blocks: None) -> None:
    def gradients(scan: Scan) -> list[Tensor]:
        u, dt, A, B, C, h0 = selective_inputs(length=40)
        _, final = scan(u, dt, A, B, C, h0, chunk=16)
        found = torch.autograd.grad(final.square().sum(), (u, dt, A, B, h0))
        return list(found)

    for found, right in zip(gradients(chunked), gradients(naive), strict=True):
        assert relative_error(found, right) < 1e-12


def test_state_stays_fp32_when_inputs_are_bf16() -> None:
    u, dt, A, B, C, h0 = (value.detach() for value in selective_inputs(length=40, dtype=torch.float32))
    low = [value.bfloat16().requires_grad_() for value in (u, B, C)]
    y, final = chunked(low[0], dt, A, low[1], low[2], h0, chunk=16)
    right_low = [value.detach().double().requires_grad_() for value in low]
    right_y, right_final = naive(right_low[0], dt.double(), A.double(), *right_low[1:], h0.double())
    assert (y.dtype, final.dtype) == (torch.bfloat16, torch.float32)
    assert relative_error(final, right_final) < 1e-5
    assert relative_error(y, right_y) < 2**-8
    gradients = torch.autograd.grad(y.float().sum() + final.sum(), low)
    right_gradients = torch.autograd.grad(right_y.sum() + right_final.sum(), right_low)
    for found, right in zip(gradients, right_gradients, strict=True):
        assert found.dtype == torch.bfloat16
        assert relative_error(found, right) < 2**-8


@pytest.mark.parametrize("scan", SCANS.values(), ids=SCANS)
def test_a_row_does_not_depend_on_other_rows(scan: Scan) -> None:
    u, dt, A, B, C, h0 = selective_inputs(rows=3, length=40)
    y, final = scan(u, dt, A, B, C, h0, chunk=16)
    alone, alone_final = scan(u[1:2], dt[1:2], A, B[1:2], C[1:2], h0[1:2], chunk=16)
    torch.testing.assert_close(y[1:2], alone)
    torch.testing.assert_close(final[1:2], alone_final)


def test_inputs_may_be_views_of_any_layout(small_blocks: None) -> None:
    u, dt, A, B, C, h0 = selective_inputs(rows=3, length=20)
    turned = [value.detach().transpose(0, -1).contiguous().transpose(0, -1).requires_grad_() for value in (u, dt, B, C)]
    strange = [
        turned[0],
        turned[1],
        A.detach().t().contiguous().t(),
        turned[2],
        turned[3],
        h0.detach()[:1].expand(3, -1, -1),
    ]
    assert not any(value.is_contiguous() for value in strange)
    right = naive(u, dt, A, B, C, h0[:1].expand(3, -1, -1))
    for found, expected in zip(chunked(*strange, chunk=4), right, strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("B", "T", "D", "N"), [(8, 256, 256, 16), (1, 8192, 256, 16), (4, 2048, 1536, 16), (1, 3, 5, 2)]
)
def test_blocks_fit_and_channels_are_cut_evenly(B: int, T: int, D: int, N: int) -> None:
    plan = plan_blocks(B, T, D, N, 16, "cpu")
    assert plan.rows * plan.positions * plan.channels * N <= BLOCK_ELEMENTS["cpu"]
    assert plan.positions == T or plan.positions % 16 == 0
    assert D % plan.channels == 0
    assert [t for at in plan.blocks(T) for t in range(at.start, at.stop)] == list(range(T))


class LargestTensor(TorchDispatchMode):
    """Remembers the elements of the largest storage that an operation returned."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor):
                self.elements = max(self.elements, value.untyped_storage().nbytes() // value.element_size())
        return result


def largest_tensor(scan: Scan, inputs: list[Tensor]) -> int:
    with LargestTensor() as watch:
        y, final = scan(*inputs, chunk=16)
        torch.autograd.grad(y.sum() + final.sum(), inputs)
    return watch.elements


def test_no_tensor_of_every_state_is_ever_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BLOCK_ELEMENTS, "cpu", 2**11)
    B, T, D, N = 2, 256, 16, 8
    inputs = selective_inputs(rows=B, length=T, channels=D, columns=N)
    everything = B * T * D * N
    assert largest_tensor(chunked, inputs) <= everything // 8
    _, dt, A, *_ = inputs
    with LargestTensor() as watch:
        torch.exp(dt[..., None] * A)
    assert watch.elements == everything


@pytest.fixture
def nan_in_fresh_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fill memory from torch.empty and its like with NaN."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_nothing_is_read_from_memory_before_it_is_written(nan_in_fresh_memory: None, small_blocks: None) -> None:
    assert torch.ones(1).new_empty(3).isnan().all() and torch.empty_like(torch.ones(3)).isnan().all()
    reset = torch.zeros(3, 37, dtype=torch.bool)
    reset[1, 20] = True
    assert_equals_naive(selective_inputs(rows=3, length=37), reset, chunk=16, tolerance=1e-12)
