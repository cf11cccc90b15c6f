"""The chunked gated scan (GLA, and RWKV-6 with a bonus) against the loop over time, and the laws that hold for both."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.kernels import CPU_KERNELS
from models.scans import gated, tiles
from models.scans.gated_chunked import FASTEST_DECAY
from models.scans.tiles import Tile, binary_blocks, plan_tiles
from tests.models.makers import relative_error

Scan = Callable[..., tuple[Tensor, Tensor]]
gated_naive: Scan = gated.gated_naive
gated_chunked: Scan = gated.gated_chunked
SCANS: dict[str, Scan] = {name: gated.GATED_SCANS[name] for name in CPU_KERNELS}
NAMES = ("o", "final state", "dq", "dk", "dv", "dg", "dh0", "dbonus")
SCALE = 0.7

both_families = pytest.mark.parametrize("family", ["gla", "rwkv6"])
both_scans = pytest.mark.parametrize("scan", SCANS.values(), ids=SCANS)


def gated_inputs(
    family: str,
    rows: int = 2,
    length: int = 12,
    heads: int = 3,
    keys: int = 5,
    values: int = 7,
    fastest: float = 0.5,
    dtype: torch.dtype = torch.float64,
) -> list[Tensor]:
    """Random q, k, v, g, h0 and for RWKV-6 a bonus, as leaves; log-decays lie between 0 and -fastest."""
    generator = torch.Generator().manual_seed(rows * 1000 + length)
    q, k = torch.randn(2, rows, length, heads, keys, generator=generator, dtype=torch.float64)
    v = torch.randn(rows, length, heads, values, generator=generator, dtype=torch.float64)
    g = -torch.rand(rows, length, heads, keys, generator=generator, dtype=torch.float64) * fastest
    h0 = torch.randn(rows, heads, keys, values, generator=generator, dtype=torch.float64)
    bonus = torch.randn(heads, keys, generator=generator, dtype=torch.float64)
    inputs = [q, k, v, g, h0] if family == "gla" else [q, k, v, g, h0, bonus]
    return [value.to(dtype).requires_grad_() for value in inputs]


def run(scan: Scan, inputs: list[Tensor], reset: Tensor | None = None, chunk: int = 16) -> tuple[Tensor, Tensor]:
    q, k, v, g, h0, *bonus = inputs
    return scan(q, k, v, g, h0, reset, bonus_HK=bonus[0] if bonus else None, scale=SCALE, chunk=chunk)


def outputs_and_gradients(scan: Scan, inputs: list[Tensor], reset: Tensor | None, chunk: int) -> list[Tensor]:
    leaves = [value.detach().clone().requires_grad_() for value in inputs]
    o, final = run(scan, leaves, reset, chunk)
    loss = (o * torch.cos(o)).sum() + (final * torch.sin(final)).sum()
    return [o, final, *torch.autograd.grad(loss, leaves)]


def assert_equals_naive(
    inputs: list[Tensor], reset: Tensor | None, chunk: int, tolerance: float, dtype: torch.dtype = torch.float64
) -> None:
    right = outputs_and_gradients(gated_naive, inputs, reset, chunk)
    found = outputs_and_gradients(gated_chunked, [value.to(dtype) for value in inputs], reset, chunk)
    errors = {name: relative_error(a, b) for name, a, b in zip(NAMES, found, right, strict=False)}
    assert len(errors) == len(inputs) + 2
    assert max(errors.values()) < tolerance, errors


def with_decays(inputs: list[Tensor], g_K: list[float]) -> list[Tensor]:
    g = torch.tensor(g_K, dtype=torch.float64).expand_as(inputs[3]).clone()
    return [*inputs[:3], g, *inputs[4:]]


@both_families
def test_naive_scan_follows_the_recurrence_written_out_by_hand(family: str) -> None:
    q, k, v, g, h0, u = 2.0, 3.0, 5.0, -0.5, 7.0, 11.0
    one = torch.ones(1, 2, 1, 1, dtype=torch.float64)
    inputs = [q * one, k * one, v * one, g * one, h0 * one[:, :1]]
    first = math.exp(g) * h0 + k * v
    second = math.exp(g) * first + k * v
    reads = [first, second]
    if family == "rwkv6":
        inputs.append(u * one[0, 0])
        reads = [h0 + u * k * v, first + u * k * v]
    o, final = run(gated_naive, inputs)
    torch.testing.assert_close(o.flatten(), SCALE * q * torch.tensor(reads, dtype=torch.float64))
    torch.testing.assert_close(final.flatten(), torch.tensor([second], dtype=torch.float64))


@both_families
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 40])
def test_chunked_equals_naive_with_all_gradients(family: str, length: int) -> None:
    assert_equals_naive(gated_inputs(family, length=length), None, chunk=16, tolerance=1e-11)


@both_families
@pytest.mark.parametrize("chunk", [1, 3, 24, 64])
@pytest.mark.parametrize("fastest", [3.0, 8.0, 60.0, 1e4], ids=["halved", "halved or exact", "exact", "all forgotten"])
def test_chunked_equals_naive_at_any_decay(family: str, fastest: float, chunk: int) -> None:
    assert_equals_naive(gated_inputs(family, length=70, fastest=fastest), None, chunk=chunk, tolerance=1e-11)


@both_families
@pytest.mark.parametrize(
    "g_K",
    [[-60.0] * 5, [-60.0, 0.0, -60.0, 0.0, -1.0], [0.0] * 5, [float("-inf"), 0.0, -1.0, -60.0, -9.0]],
    ids=["all -60", "-60 beside 0", "none", "-inf"],
)
def test_chunked_equals_naive_where_channels_forget_at_once_or_never(family: str, g_K: list[float]) -> None:
    inputs = with_decays(gated_inputs(family, length=70), g_K)
    assert_equals_naive(inputs, None, chunk=64, tolerance=1e-11)


@both_families
@pytest.mark.parametrize("g", [-60.0, -9.0, -3.9])
def test_gradients_of_tiny_decays_are_right_relative_to_themselves(family: str, g: float) -> None:
    inputs = with_decays(gated_inputs(family, length=40), [g] * 5)
    right = outputs_and_gradients(gated_naive, inputs, None, 64)[5]
    found = outputs_and_gradients(gated_chunked, inputs, None, 64)[5]
    assert 0 < float(right.abs().max()) < math.exp(g) * 1e4
    assert relative_error(found, right) < 1e-11
    in_fp32 = outputs_and_gradients(gated_chunked, [value.float() for value in inputs], None, 64)[5]
    assert relative_error(in_fp32, right) < 1e-4


@both_families
@pytest.mark.parametrize("fastest", [0.1, 2.0, 60.0])
def test_fp32_errors_stay_near_rounding(family: str, fastest: float) -> None:
    inputs = gated_inputs(family, length=150, fastest=fastest)
    assert_equals_naive(inputs, None, chunk=64, tolerance=2e-5, dtype=torch.float32)


@both_families
@pytest.mark.parametrize("fastest", [0.5, 60.0])
def test_resets_cut_state_outputs_and_gradients_as_the_loop_does(family: str, fastest: float) -> None:
    reset = torch.rand(3, 50, generator=torch.Generator().manual_seed(1)) < 0.15
    reset[0] = False
    reset[1, 0] = True
    assert_equals_naive(gated_inputs(family, rows=3, length=50, fastest=fastest), reset, chunk=16, tolerance=1e-11)


@both_families
@both_scans
def test_nothing_before_a_reset_reaches_beyond_it(scan: Scan, family: str) -> None:
    q, k, v, g, h0, *bonus = gated_inputs(family, length=40)
    reset = torch.zeros(2, 40, dtype=torch.bool)
    reset[:, 23] = True
    o, final = run(scan, [q, k, v, g, h0, *bonus], reset)
    tail = [value[:, 23:] for value in (q, k, v, g)]
    alone, alone_final = run(scan, [*tail, torch.zeros_like(h0), *bonus])
    torch.testing.assert_close(o[:, 23:], alone)
    torch.testing.assert_close(final, alone_final)


@both_scans
def test_rwkv6_reads_only_its_bonus_term_where_the_state_is_reset(scan: Scan) -> None:
    q, k, v, g, h0, bonus = gated_inputs("rwkv6", length=20)
    reset = torch.zeros(2, 20, dtype=torch.bool)
    reset[:, 11] = True
    o, _ = run(scan, [q, k, v, g, h0, bonus], reset)
    own = SCALE * (q[:, 11] * bonus * k[:, 11]).sum(-1, keepdim=True) * v[:, 11]
    torch.testing.assert_close(o[:, 11], own)


@both_families
@pytest.mark.parametrize("rows_per_tile", [1, 3, 8], ids=lambda rows: f"{rows} rows a tile")
def test_tiles_do_not_change_results(family: str, rows_per_tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "TILE_POSITIONS", 16 * rows_per_tile)
    assert_equals_naive(gated_inputs(family, rows=7, length=70), None, chunk=16, tolerance=1e-11)


@both_families
def test_exact_form_of_accelerators_equals_naive(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def as_on_an_accelerator(low: int, high: int, decay_BT: Tensor, *_: object, **__: object) -> list[Tile]:
        return list(binary_blocks(low, high, 0, decay_BT.shape[1], 64))

    monkeypatch.setattr("models.scans.gated_chunked.plan_tiles", as_on_an_accelerator)
    assert_equals_naive(gated_inputs(family, length=150), None, chunk=64, tolerance=1e-11)


@both_families
@pytest.mark.parametrize("fastest", [0.5, 60.0], ids=["factored", "exact"])
def test_gradcheck_including_initial_and_final_state(family: str, fastest: float) -> None:
    inputs = gated_inputs(family, rows=1, length=6, heads=2, keys=2, values=3, fastest=fastest)
    assert torch.autograd.gradcheck(lambda *values: run(gated_chunked, list(values), chunk=4), inputs)
    reset = torch.zeros(1, 6, dtype=torch.bool)
    reset[:, 3] = True
    assert torch.autograd.gradcheck(lambda *values: run(gated_chunked, list(values), reset, chunk=4), inputs)


@both_families
@both_scans
def test_no_initial_state_is_the_zero_state(scan: Scan, family: str) -> None:
    q, k, v, g, h0, *bonus = gated_inputs(family, length=20)
    options = {"bonus_HK": bonus[0] if bonus else None, "chunk": 8}
    for without, given_zero in zip(
        scan(q, k, v, g, None, **options), scan(q, k, v, g, torch.zeros_like(h0), **options), strict=True
    ):
        torch.testing.assert_close(without, given_zero, rtol=0, atol=1e-15)


@both_families
@both_scans
def test_output_is_the_zero_state_output_plus_the_propagated_initial_state(scan: Scan, family: str) -> None:
    q, k, v, g, h0, *bonus = gated_inputs(family, length=33)
    o, final = run(scan, [q, k, v, g, h0, *bonus])
    o_zero, final_zero = run(scan, [q, k, v, g, torch.zeros_like(h0), *bonus])
    inclusive = g.cumsum(1)
    reach = torch.exp(inclusive if family == "gla" else inclusive - g)
    torch.testing.assert_close(o - o_zero, SCALE * torch.einsum("bthk,bhkv->bthv", q * reach, h0))
    torch.testing.assert_close(final - final_zero, torch.exp(inclusive[:, -1])[..., None] * h0)


@both_families
@settings(max_examples=15)
@given(
    length=st.integers(2, 40),
    part=st.floats(0.01, 0.99),
    chunk=st.sampled_from([1, 3, 16, 64]),
    fastest=st.sampled_from([0.0, 0.5, 8.0, 60.0]),
)
def test_cutting_anywhere_and_carrying_equals_one_pass(
    family: str, length: int, part: float, chunk: int, fastest: float
) -> None:
    cut = min(length - 1, max(1, int(part * length)))
    q, k, v, g, h0, *bonus = gated_inputs(family, length=length, fastest=fastest)
    whole, final = run(gated_chunked, [q, k, v, g, h0, *bonus], chunk=chunk)
    head, middle = run(gated_chunked, [*(x[:, :cut] for x in (q, k, v, g)), h0, *bonus], chunk=chunk)
    tail, end = run(gated_chunked, [*(x[:, cut:] for x in (q, k, v, g)), middle, *bonus], chunk=chunk)
    assert relative_error(torch.cat([head, tail], 1), whole) < 1e-12
    assert relative_error(end, final) < 1e-12


@both_families
def test_a_detached_final_state_gives_the_gradients_of_the_outputs_alone(family: str) -> None:
    def gradients(scan: Scan) -> tuple[Tensor, ...]:
        inputs = gated_inputs(family, length=40)
        o, _ = run(scan, inputs)
        return torch.autograd.grad(o.square().sum(), inputs)

    for found, right in zip(gradients(gated_chunked), gradients(gated_naive), strict=True):
        assert relative_error(found, right) < 1e-11


@both_families
def test_the_final_state_alone_gives_its_gradients(family: str) -> None:
    def gradients(scan: Scan) -> tuple[Tensor, ...]:
        _, k, v, g, h0, *_ = inputs = gated_inputs(family, length=40)
        return torch.autograd.grad(run(scan, inputs)[1].square().sum(), [k, v, g, h0])

    for found, right in zip(gradients(gated_chunked), gradients(gated_naive), strict=True):
        assert relative_error(found, right) < 1e-11


@both_families
def test_state_stays_fp32_when_inputs_are_bf16(family: str) -> None:
    q, k, v, g, h0, *bonus = (value.detach() for value in gated_inputs(family, length=40, dtype=torch.float32))
    low = [value.bfloat16() for value in (q, k, v)]
    leaves = [value.requires_grad_() for value in (*low, g, h0, *bonus)]
    o, final = run(gated_chunked, leaves)
    right_o, right_final = run(gated_naive, [value.double() for value in leaves])
    assert (o.dtype, final.dtype) == (torch.bfloat16, torch.float32)
    assert relative_error(final, right_final) < 1e-5
    assert relative_error(o, right_o) < 2**-8
    found = torch.autograd.grad(o.float().sum() + final.sum(), leaves)
    right = torch.autograd.grad(right_o.sum() + right_final.sum(), leaves)
    assert [grad.dtype for grad in found] == [leaf.dtype for leaf in leaves]
    assert max(relative_error(a, b) for a, b in zip(found, right, strict=True)) < 2**-7


def test_exact_blocks_are_powers_of_two_as_long_as_possible() -> None:
    plan = list(binary_blocks(0, 2, 5, 5 + 64 + 32 + 7, 40))
    assert [(tile.blocks, tile.shape[2]) for tile in plan] == [(3, 32), (1, 4), (1, 2), (1, 1)]
    assert [(tile.start, tile.end) for tile in plan] == [(5, 101), (101, 105), (105, 107), (107, 108)]


def test_accelerators_are_not_asked_for_their_decays() -> None:
    g = torch.full((2, 150, 3, 5), -0.1, device="meta")
    plan = plan_tiles(0, 2, g, None, chunk=64, exact=binary_blocks)
    assert [(tile.shape, tile.factored) for tile in plan] == [
        ((2, 2, 64), False),
        ((2, 1, 16), False),
        ((2, 1, 4), False),
        ((2, 1, 2), False),
    ]


@pytest.mark.parametrize(("decay", "leaf"), [(0.1, 64), (2.0, 32), (3.9, 16), (4.1, None)])
def test_leaves_shrink_with_the_strongest_channel(decay: float, leaf: int | None) -> None:
    g = torch.full((2, 256, 3, 5), -0.1)
    g[1, :, 2, 3] = -decay
    plan = plan_tiles(0, 2, g, None, chunk=64, exact=binary_blocks, fastest=FASTEST_DECAY)
    assert {tile.shape[2] if tile.factored else None for tile in plan} == {leaf}


@both_families
@both_scans
def test_a_row_does_not_depend_on_other_rows(scan: Scan, family: str) -> None:
    inputs = gated_inputs(family, rows=3, length=40)
    rows, bonus = inputs[:5], inputs[5:]
    o, final = run(scan, [*rows, *bonus])
    alone, alone_final = run(scan, [*(value[1:2] for value in rows), *bonus])
    torch.testing.assert_close(o[1:2], alone)
    torch.testing.assert_close(final[1:2], alone_final)


def test_long_sequences_in_other_blocks_stay_as_exact_as_in_one_pass() -> None:
    q, k, v, g, h0 = gated_inputs("gla", rows=1, length=2048, heads=1, fastest=0.02)
    right, _ = run(gated_naive, [q, k, v, g, h0])
    low = [value.float() for value in (q, k, v, g, h0)]
    once, in_blocks = (relative_error(run(gated_chunked, low, chunk=chunk)[0], right) for chunk in (64, 5))
    assert in_blocks < 3 * max(once, 1e-7)
