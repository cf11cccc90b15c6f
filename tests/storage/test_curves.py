import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.curves import Curve, CurveBuilder, bin_edges
from storage.errors import StorageError


def curve_of(nll: np.ndarray, train_length: int = 64, bytes_per_token: float = 1.0) -> Curve:
    windows, length = nll.shape
    names = [f"document{window % 3}" for window in range(windows)]
    builder = CurveBuilder(names, [0] * windows, length, train_length, "report", bytes_per_token=bytes_per_token)
    builder.accumulate(nll, 1)
    return builder.finish()


def test_edges_are_the_quarter_octaves() -> None:
    assert bin_edges(128, 64).tolist() == [0, 16, 19, 23, 27, 32, 38, 45, 54, 64, 76, 91, 108, 128]
    assert bin_edges(10, 64).tolist() == [0, 10]
    assert {50, 25, 100} <= set(bin_edges(100, 50).tolist())


@settings(max_examples=60)
@given(st.integers(1, 2**40), st.integers(1, 2**40))
def test_edges_increase_and_hold_the_ranges_of_the_table(length: int, train_length: int) -> None:
    edges = bin_edges(length, train_length)
    assert edges[0] == 0 and edges[-1] == length and (np.diff(edges) > 0).all() and len(edges) <= 256
    wanted = {512, 1024, 4096, 8192, train_length, train_length // 2}
    assert {edge for edge in wanted if edge <= length} <= set(edges.tolist())


@pytest.mark.parametrize(("length", "train_length"), [(0, 1), (1, 0)])
def test_edges_of_nothing_are_refused(length: int, train_length: int) -> None:
    with pytest.raises(StorageError, match="at least 1"):
        bin_edges(length, train_length)


def test_the_longest_window_an_index_can_hold_has_at_most_256_edges() -> None:
    assert len(bin_edges(2**62, 3)) <= 256


def test_position_one_is_the_first_and_a_bin_ends_at_its_right_edge() -> None:
    nll = np.arange(1, 33, dtype=np.float64)[None]
    curve = curve_of(nll)
    assert curve.edges.tolist() == [0, 16, 19, 23, 27, 32]
    assert curve.count.tolist() == [[16, 3, 4, 4, 5]]
    assert curve.nll_sum.tolist() == [[136.0, 54.0, 86.0, 102.0, 150.0]]


def test_perplexity_is_the_exponential_of_a_mean_over_windows() -> None:
    nll = np.stack([np.full(16, 1.0), np.full(16, 3.0)])
    assert curve_of(nll).perplexity() == pytest.approx([math.exp(2.0)])


def test_ranges_are_exact_sums_of_their_positions() -> None:
    nll = np.random.default_rng(0).exponential(size=(4, 9000))
    curve = curve_of(nll, train_length=100)
    table = curve.table()
    expected = {"ppl_train": (50, 100), "ppl_1k": (512, 1024), "ppl_8k": (4096, 8192)}
    for name, (low, high) in expected.items():
        assert table[name] == pytest.approx(math.exp(nll[:, low:high].mean()), rel=1e-13)
    assert table["ratio"] == pytest.approx(math.exp(nll[:, 4096:8192].mean() - nll[:, 50:100].mean()), rel=1e-13)
    sums, counts = curve.window_range_nll(512, 1024)
    assert sums == pytest.approx(nll[:, 512:1024].sum(axis=1), rel=1e-13) and counts.tolist() == [512] * 4


def test_table_has_none_where_the_window_is_too_short() -> None:
    table = curve_of(np.ones((1, 1000)), train_length=2000).table()
    assert table == {
        "ppl_train": None,
        "ppl_1k": None,
        "ppl_8k": None,
        "ratio": None,
        "bits_per_byte": pytest.approx(1 / math.log(2)),
    }


def test_bits_per_byte_divides_by_the_bytes_of_a_token() -> None:
    curve = curve_of(np.full((2, 20), 4 * math.log(2)), bytes_per_token=2.0)
    assert curve.bits_per_byte() == pytest.approx(2.0)


def test_a_range_that_cuts_a_bin_is_refused() -> None:
    with pytest.raises(StorageError, match="position 60 is no edge of a bin; the nearest edge is 64"):
        curve_of(np.ones((1, 128))).range_perplexity(0, 60)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 40), max_size=6), st.integers(1, 3))
def test_chunks_of_any_length_give_the_same_curve(chunks: list[int], windows: int) -> None:
    nll = np.random.default_rng(1).exponential(size=(windows, 100))
    builder = CurveBuilder(["x"] * windows, [0] * windows, 100, 64, "report")
    cuts = [0, *np.minimum(np.cumsum(chunks, dtype=int), 100).tolist(), 100]
    for begin, end in zip(cuts, cuts[1:], strict=False):
        for window in range(windows):
            builder.accumulate(nll[window : window + 1, begin:end], begin + 1, first_window=window)
    curve, whole = builder.finish(), curve_of(nll)
    assert np.array_equal(curve.count, whole.count)
    np.testing.assert_allclose(curve.nll_sum, whole.nll_sum, rtol=1e-13)


def test_sums_are_kept_in_float64() -> None:
    builder = CurveBuilder(["x"], [0], 2**16, 2**16, "report")
    builder.accumulate(np.full((1, 2**16), 0.1, np.float32), 1)
    assert builder.finish().nll_sum.sum() == pytest.approx(2**16 * float(np.float32(0.1)), rel=1e-12)


@pytest.mark.parametrize("first_position", [9, 11, 1])
def test_a_lost_or_repeated_position_is_refused(first_position: int) -> None:
    builder = CurveBuilder(["x"], [0], 100, 64, "report")
    builder.accumulate(np.ones((1, 9)), 1)
    with pytest.raises(StorageError, match="lost or counted twice: .* at \\[9\\]"):
        builder.accumulate(np.ones((1, 5)), first_position)


def test_a_chunk_beyond_the_end_and_an_unfinished_window_are_refused() -> None:
    builder = CurveBuilder(["x", "y"], [0, 0], 10, 64, "report")
    with pytest.raises(StorageError, match="lost or counted twice"):
        builder.accumulate(np.ones((2, 11)), 1)
    builder.accumulate(np.ones((1, 10)), 1)
    with pytest.raises(StorageError, match="window 1 has 0 of 10 positions"):
        builder.finish()
    with pytest.raises(StorageError, match="does not fit 2 windows"):
        builder.accumulate(np.ones((2, 10)), 1, first_window=1)


def test_values_that_are_not_finite_are_counted_and_stay_visible() -> None:
    nll = np.ones((2, 32))
    nll[1, 3], nll[1, 20] = np.nan, np.inf
    curve = curve_of(nll)
    assert curve.nonfinite.tolist() == [0, 2]
    assert np.isnan(curve.perplexity()[0]) and np.isinf(curve.perplexity()[2])
    assert curve.perplexity()[1] == pytest.approx(math.e)
    assert math.isnan(curve.bits_per_byte())


def test_a_curve_whose_parts_do_not_fit_is_refused() -> None:
    curve = curve_of(np.ones((2, 32)))
    for change in ({"starts": np.zeros(3, np.int64)}, {"nll_sum": np.zeros((2, 4))}, {"edges": curve.edges[::-1]}):
        with pytest.raises(StorageError):
            replace(curve, **change)
