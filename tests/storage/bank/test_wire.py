import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from storage.bank.layout import BankLayout, Float32, Wire
from storage.bank.wire import as_range, copy_rows, decode, encoded, nonfinite_rows, runs, zero_nonfinite

LARGEST_BF16 = np.uint32(0x7F7F0000).view(np.float32)


def as_bf16(states: Float32) -> Wire:
    return encoded(states, BankLayout(rows=1, elements=1, wire_dtype="bf16"))


def test_good_states_are_not_copied() -> None:
    states = np.full((3, 5), np.finfo(np.float32).max, np.float32)  # their sum overflows, they do not
    kept, bad = zero_nonfinite(states)
    assert kept is states
    assert bad.size == 0


@given(hnp.arrays(np.float32, (5, 7), elements=st.floats(width=32)))
def test_exactly_the_rows_with_a_bad_value_are_zeroed(states: np.ndarray) -> None:
    kept, bad = zero_nonfinite(states)
    expected = ~np.isfinite(states).all(axis=1)
    assert bad.tolist() == np.flatnonzero(expected).tolist()
    assert not kept[expected].any()
    assert np.array_equal(kept[~expected], states[~expected])


def test_wide_rows_are_searched_to_their_end_in_every_block() -> None:
    states = np.zeros((9, 50_000), np.float32)
    states[[2, 8], -1] = np.nan
    assert zero_nonfinite(states)[1].tolist() == [2, 8]


@given(hnp.arrays(np.float32, (2, 9), elements=st.floats(-float(LARGEST_BF16), float(LARGEST_BF16), width=32)))
def test_bf16_is_the_nearest_of_both_neighbours_and_even_on_ties(states: np.ndarray) -> None:
    out = np.empty_like(states)
    decode(out, as_bf16(states))
    truncated = states.view(np.uint32) & np.uint32(0xFFFF0000)
    low = truncated.view(np.float32).astype(np.float64)
    high = (truncated + np.uint32(0x10000)).view(np.float32).astype(np.float64)
    exact = states.astype(np.float64)
    to_low, to_high = np.abs(exact - low), np.abs(high - exact)
    even_is_low = (truncated >> 16) % 2 == 0
    expected = np.where((to_low < to_high) | ((to_low == to_high) & even_is_low), low, high)
    assert np.array_equal(out.astype(np.float64), expected)


def test_bf16_of_long_rows_is_that_of_their_pieces() -> None:
    states = np.random.default_rng(0).standard_normal((3, 50_001), dtype=np.float32)
    pieces = [as_bf16(np.ascontiguousarray(part)) for part in np.array_split(states, 7, axis=1)]
    assert np.array_equal(as_bf16(states), np.concatenate(pieces, axis=1))


def test_a_value_that_rounds_to_infinity_in_bf16_counts_as_bad() -> None:
    just_below = np.uint32(0x7F7F7FFF).view(np.float32)
    states = np.array([[just_below], [-np.uint32(0x7F7F8000).view(np.float32)]], np.float32)
    kept, bad = zero_nonfinite(states, "bf16")
    assert bad.tolist() == [1]
    assert as_bf16(kept).tolist() == [[0x7F7F], [0]]


@given(hnp.arrays(np.uint32, (3, 5), elements=st.integers(0, 2**32 - 1)))
def test_exactly_the_rows_that_are_not_finite_are_found_in_both_precisions(bits: np.ndarray) -> None:
    states = bits.view(np.float32)
    assert nonfinite_rows(states, np.arange(3)).tolist() == zero_nonfinite(states, "fp32")[1].tolist()
    assert nonfinite_rows(as_bf16(states), np.arange(3)).tolist() == zero_nonfinite(states, "bf16")[1].tolist()


@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0xFF800001])
def test_a_nan_of_any_bits_stays_a_nan_in_bf16(bits: int) -> None:
    out = np.zeros((1, 2), np.float32)
    decode(out, as_bf16(np.array([[bits, 0]], np.uint32).view(np.float32)))
    assert np.isnan(out[0]).tolist() == [True, False]


def test_bad_rows_are_named_by_their_place_in_the_request() -> None:
    block = np.zeros((9, 70_000), np.float32)
    block[[2, 8], -1] = np.inf
    assert nonfinite_rows(block, np.array([8, 1, 2, 3])).tolist() == [0, 2]
    assert nonfinite_rows(as_bf16(block), np.array([8, 1, 2, 3])).tolist() == [0, 2]
    assert nonfinite_rows(block, np.array([0, 1])).size == 0


@given(st.lists(st.integers(0, 30), max_size=6))
def test_a_range_selects_what_its_indices_select(indices: list[int]) -> None:
    ascending = indices == list(range(indices[0], indices[0] + len(indices))) if indices else True
    found = as_range(np.array(indices, dtype=np.int64))
    assert found == (range(indices[0], indices[-1] + 1) if indices else range(0)) if ascending else found is None


@given(data=st.data(), count=st.integers(0, 8))
def test_runs_cover_every_pair_once_and_are_as_long_as_can_be(data: st.DataObject, count: int) -> None:
    place = data.draw(st.lists(st.integers(0, 12), min_size=count, max_size=count))
    take = data.draw(st.lists(st.integers(0, 12), min_size=count, max_size=count))
    found = list(runs(np.array(place, dtype=np.int64), np.array(take, dtype=np.int64)))
    pairs = [(to + i, take[start] + i) for to, start, length in found for i in range(length)]
    assert pairs == list(zip(place, take, strict=True))
    ends = [(pairs[start + length - 1], pairs[start + length]) for _, start, length in found[:-1]]
    assert all((a + 1, b + 1) != following for (a, b), following in ends)


def test_rows_are_copied_in_the_order_asked_for() -> None:
    block = np.arange(24, dtype=np.float32).reshape(8, 3)
    out = np.zeros((5, 3), np.float32)
    copy_rows(out, np.array([4, 0, 1, 2, 3]), block, np.array([7, 2, 3, 3, 0]), decode)
    assert np.array_equal(out, block[[2, 3, 3, 0, 7]])
