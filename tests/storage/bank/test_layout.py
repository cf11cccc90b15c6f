import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from storage.bank.layout import BankLayout, as_slice, decode_into, encode, zero_nonfinite
from storage.errors import StorageError

LARGEST_BF16 = np.uint32(0x7F7F0000).view(np.float32)


@given(rows=st.integers(1, 200), data=st.data())
def test_shards_are_contiguous_disjoint_and_cover_all_rows(rows: int, data: st.DataObject) -> None:
    shards = data.draw(st.integers(1, rows))
    layout = BankLayout(rows=rows, elements=1)
    owner = layout.shard_of(np.arange(rows), shards)
    ranges = [layout.shard_range(shard, shards) for shard in range(shards)]
    assert [row for lo, hi in ranges for row in range(lo, hi)] == list(range(rows))
    assert all((owner[lo:hi] == shard).all() and hi > lo for shard, (lo, hi) in enumerate(ranges))


@pytest.mark.parametrize("shards", [0, 5])
def test_more_shards_than_rows_or_none_are_refused(shards: int) -> None:
    with pytest.raises(StorageError, match="from 1 to 4"):
        BankLayout(rows=4, elements=1).shard_range(0, shards)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 0}, "at least 1"),
        ({"wire_dtype": "fp16"}, "'fp32' or 'bf16'"),
        ({"groups": (("a", 0, 9),)}, "within 0 to 8"),
        ({"groups": (("a", 3, 3),)}, "non-empty"),
        ({"groups": (("a", 0, 1), ("a", 1, 2))}, "its own name"),
    ],
)
def test_wrong_layouts_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(StorageError, match=message):
        BankLayout(**({"rows": 4, "elements": 8} | change))  # type: ignore[arg-type]


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
    bits = encode(states, "bf16")
    out = np.empty_like(states)
    decode_into(out, np.arange(2), bits, np.arange(2))
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
    pieces = [encode(np.ascontiguousarray(part), "bf16") for part in np.array_split(states, 7, axis=1)]
    assert np.array_equal(encode(states, "bf16"), np.concatenate(pieces, axis=1))


def test_a_value_that_rounds_to_infinity_in_bf16_counts_as_bad() -> None:
    just_below = np.uint32(0x7F7F7FFF).view(np.float32)
    states = np.array([[just_below], [-np.uint32(0x7F7F8000).view(np.float32)]], np.float32)
    kept, bad = zero_nonfinite(states, "bf16")
    assert bad.tolist() == [1]
    assert encode(kept, "bf16").tolist() == [[0x7F7F], [0]]


@given(st.lists(st.integers(0, 30), max_size=6))
def test_a_slice_selects_what_its_indices_select(indices: list[int]) -> None:
    array = np.arange(40)
    chosen = np.array(indices, dtype=np.int64)
    span = as_slice(chosen)
    ascending = indices == list(range(indices[0], indices[0] + len(indices))) if indices else True
    assert (span is not None) == ascending
    if span is not None:
        assert np.array_equal(array[span], array[chosen])
