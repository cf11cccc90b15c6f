"""The chunked scan against the loop over time, and the laws that hold for both."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.kernels import CPU_KERNELS
from models.scans import ssd, tiles
from models.scans.tiles import plan_tiles, single_blocks
from tests.models.makers import relative_error, scan_inputs

Scan = Callable[..., tuple[Tensor, Tensor]]
ssd_naive: Scan = ssd.ssd_naive
ssd_chunked: Scan = ssd.ssd_chunked
SCANS: dict[str, Scan] = {name: ssd.SSD_SCANS[name] for name in CPU_KERNELS}


def outputs_and_gradients(scan: Scan, inputs: list[Tensor], reset: Tensor | None, chunk: int) -> list[Tensor]:
    leaves = [value.detach().requires_grad_() for value in inputs]
    y, final = scan(*leaves, reset, chunk=chunk)
    loss = (y * torch.cos(y)).sum() + (final * torch.sin(final)).sum()
    return [y, final, *torch.autograd.grad(loss, leaves)]


def assert_equals_naive(
    inputs: list[Tensor], reset: Tensor | None, chunk: int, tolerance: float, dtype: torch.dtype = torch.float64
) -> None:
    right = outputs_and_gradients(ssd_naive, inputs, reset, chunk)
    found = outputs_and_gradients(ssd_chunked, [value.to(dtype) for value in inputs], reset, chunk)
    names = ("y", "final state", "dx", "ddt", "dA", "dB", "dC", "dh0")
    errors = {name: relative_error(a, b) for name, a, b in zip(names, found, right, strict=True)}
    assert max(errors.values()) < tolerance, errors


def test_naive_scan_follows_the_recurrence_written_out_by_hand() -> None:
    x, b, c, dt, A, h0 = 2.0, 3.0, 5.0, 0.5, -1.0, 7.0
    one = torch.ones(1, 2, 1, 1, dtype=torch.float64)
    y, final = ssd_naive(x * one, dt * one[..., 0], A * one[0, 0, 0], b * one, c * one, h0 * one[:, :1])
    first = math.exp(dt * A) * h0 + dt * x * b
    second = math.exp(dt * A) * first + dt * x * b
    torch.testing.assert_close(y.flatten(), torch.tensor([c * first, c * second], dtype=torch.float64))
    torch.testing.assert_close(final.flatten(), torch.tensor([second], dtype=torch.float64))


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 40])
@pytest.mark.parametrize("groups", [1, 2])
def test_chunked_equals_naive_with_all_gradients(length: int, groups: int) -> None:
    assert_equals_naive(scan_inputs(length=length, groups=groups), None, chunk=16, tolerance=1e-11)


@pytest.mark.parametrize("fastest", [30.0, 300.0, 1e4], ids=["halved blocks", "pairwise", "all forgotten"])
def test_chunked_equals_naive_at_any_decay(fastest: float) -> None:
    assert_equals_naive(scan_inputs(length=150, fastest=fastest), None, chunk=64, tolerance=1e-10)


@pytest.mark.parametrize("fastest", [1.0, 15.0, 300.0])
def test_fp32_errors_stay_near_rounding(fastest: float) -> None:
    assert_equals_naive(scan_inputs(length=150, fastest=fastest), None, chunk=64, tolerance=2e-5, dtype=torch.float32)


def test_resets_cut_state_outputs_and_gradients_as_the_loop_does() -> None:
    reset = torch.rand(3, 50, generator=torch.Generator().manual_seed(1)) < 0.15
    reset[0] = False
    assert_equals_naive(scan_inputs(rows=3, length=50), reset, chunk=16, tolerance=1e-11)


def test_nothing_before_a_reset_reaches_beyond_it() -> None:
    for scan in SCANS.values():
        x, dt, A, B, C, h0 = scan_inputs(length=40)
        reset = torch.zeros(2, 40, dtype=torch.bool)
        reset[:, 23] = True
        y, final = scan(x, dt, A, B, C, h0, reset, chunk=16)
        alone, alone_final = scan(x[:, 23:], dt[:, 23:], A, B[:, 23:], C[:, 23:], chunk=16)
        torch.testing.assert_close(y[:, 23:], alone)
        torch.testing.assert_close(final, alone_final)


@pytest.mark.parametrize("rows_per_tile", [1, 3, 8], ids=lambda rows: f"{rows} rows a tile")
def test_tiles_do_not_change_results(rows_per_tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "TILE_POSITIONS", 16 * rows_per_tile)
    assert_equals_naive(scan_inputs(rows=7, length=70), None, chunk=16, tolerance=1e-11)


def test_gradcheck_including_the_final_state() -> None:
    inputs = scan_inputs(rows=1, length=6, heads=2, channels=1, columns=2)
    assert torch.autograd.gradcheck(lambda *values: ssd_chunked(*values, chunk=4), inputs)
    reset = torch.zeros(1, 6, dtype=torch.bool)
    reset[:, 3] = True
    assert torch.autograd.gradcheck(lambda *values: ssd_chunked(*values, reset, chunk=4), inputs)


@pytest.mark.parametrize("scan", SCANS.values(), ids=SCANS)
def test_no_initial_state_is_the_zero_state(scan: Scan) -> None:
    *coefficients, h0 = scan_inputs(length=20)
    for without, given_zero in zip(
        scan(*coefficients, None, chunk=8), scan(*coefficients, torch.zeros_like(h0), chunk=8), strict=True
    ):
        torch.testing.assert_close(without, given_zero, rtol=0, atol=1e-15)


@pytest.mark.parametrize("scan", SCANS.values(), ids=SCANS)
def test_output_is_the_zero_state_output_plus_the_propagated_initial_state(scan: Scan) -> None:
    x, dt, A, B, C, h0 = scan_inputs(length=33)
    y, final = scan(x, dt, A, B, C, h0, chunk=16)
    y_zero, final_zero = scan(x, dt, A, B, C, chunk=16)
    reach = torch.exp((dt * A).cumsum(1))
    read = torch.einsum("bhpn,bthn->bthp", h0, C.expand(-1, -1, 4, -1))
    torch.testing.assert_close(y - y_zero, reach[..., None] * read)
    torch.testing.assert_close(final - final_zero, reach[:, -1, :, None, None] * h0)


@settings(max_examples=10)
@given(length=st.integers(2, 40), part=st.floats(0.01, 0.99), chunk=st.sampled_from([1, 3, 16, 64]))
def test_cutting_anywhere_and_carrying_equals_one_pass(length: int, part: float, chunk: int) -> None:
    cut = min(length - 1, max(1, int(part * length)))
    x, dt, A, B, C, h0 = scan_inputs(length=length)
    whole, final = ssd_chunked(x, dt, A, B, C, h0, chunk=chunk)
    head, middle = ssd_chunked(x[:, :cut], dt[:, :cut], A, B[:, :cut], C[:, :cut], h0, chunk=chunk)
    tail, end = ssd_chunked(x[:, cut:], dt[:, cut:], A, B[:, cut:], C[:, cut:], middle, chunk=chunk)
    assert relative_error(torch.cat([head, tail], 1), whole) < 1e-12
    assert relative_error(end, final) < 1e-12


def test_a_detached_final_state_gives_the_gradients_of_the_outputs_alone() -> None:
    def gradients(scan: Scan) -> tuple[Tensor, ...]:
        inputs = scan_inputs(length=40)
        y, _ = scan(*inputs, chunk=16)
        return torch.autograd.grad(y.square().sum(), inputs)

    for found, right in zip(gradients(ssd_chunked), gradients(ssd_naive), strict=True):
        assert relative_error(found, right) < 1e-11


def test_state_stays_fp32_when_inputs_are_bf16() -> None:
    x, dt, A, B, C, h0 = (value.detach() for value in scan_inputs(length=40, dtype=torch.float32))
    low = [value.bfloat16() for value in (x, B, C)]
    y, final = ssd_chunked(low[0], dt, A, low[1], low[2], h0, chunk=16)
    right_y, right_final = ssd_naive(
        low[0].double(), dt.double(), A.double(), *(v.double() for v in low[1:]), h0.double()
    )
    assert (y.dtype, final.dtype) == (torch.bfloat16, torch.float32)
    assert relative_error(final, right_final) < 1e-5
    assert relative_error(y, right_y) < 2**-8


def covered(plan: list[tiles.Tile]) -> list[int]:
    return [position for tile in plan for position in range(tile.start, tile.end)]


@pytest.mark.parametrize(
    ("decay_per_position", "kind"), [(0.1, (64, True)), (2.0, (32, True)), (4.9, (16, True)), (6.0, (32, False))]
)
def test_blocks_shrink_with_the_decay_and_then_turn_pairwise(decay_per_position: float, kind: tuple[int, bool]) -> None:
    plan = plan_tiles(0, 2, torch.full((2, 300, 4), -decay_per_position), None, chunk=64, exact=single_blocks)
    assert covered(plan) == list(range(300))
    assert {(tile.shape[2], tile.factored) for tile in plan if tile.end <= 256} == {kind}


def test_only_tiles_with_a_reset_turn_pairwise() -> None:
    reset = torch.zeros(2, 512, dtype=torch.bool)
    reset[1, 300] = True
    plan = plan_tiles(0, 2, torch.full((2, 512, 4), -0.1), reset, chunk=64, exact=single_blocks)
    assert covered(plan) == list(range(512))
    assert {tile.factored for tile in plan if tile.end <= 256} == {True}
    assert {tile.factored for tile in plan if tile.start <= 300 < tile.end} == {False}


def test_accelerators_are_not_asked_for_their_decays() -> None:
    plan = plan_tiles(0, 2, torch.full((2, 150, 4), -0.1, device="meta"), None, chunk=64, exact=single_blocks)
    assert covered(plan) == list(range(150))
    assert [(tile.shape, tile.factored) for tile in plan] == [
        ((2, 1, 64), False),
        ((2, 1, 64), False),
        ((2, 1, 22), False),
    ]


@pytest.mark.parametrize("scan", SCANS.values(), ids=SCANS)
def test_a_row_does_not_depend_on_other_rows(scan: Scan) -> None:
    x, dt, A, B, C, h0 = scan_inputs(rows=3, length=40)
    y, final = scan(x, dt, A, B, C, h0, chunk=16)
    alone, alone_final = scan(x[1:2], dt[1:2], A, B[1:2], C[1:2], h0[1:2], chunk=16)
    torch.testing.assert_close(y[1:2], alone)
    torch.testing.assert_close(final[1:2], alone_final)
