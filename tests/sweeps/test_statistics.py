import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.curves import Curve
from sweeps.length_generalization import horizon, horizon_interval, length_generalization, lowest_bin
from sweeps.statistics import (
    Interval,
    document_draws,
    paired_difference,
    pool,
    ppl_band,
    ppl_interval,
    seed_difference,
    t_interval,
)
from tests.curve_makers import curve_of, make_curve

SEEDS = st.integers(0, 2**32 - 1)


def percent(log: float) -> float:
    return 100 * math.expm1(log)


def assert_close(found: Interval, expected: Interval, rel: float = 1e-9) -> None:
    assert dataclasses.astuple(found) == pytest.approx(dataclasses.astuple(expected), rel=rel, abs=1e-9)


def test_a_paired_difference_worked_out_by_hand() -> None:
    # Document a differs by 1 nat per token, document b by none. Drawing two of two documents gives a mean of 0, 0.5
    # or 1; the interval for two documents reaches to both ends.
    interval = paired_difference(
        curve_of([4.0, 6.0], ("a", "b"), [2, 2]), curve_of([2.0, 6.0], ("a", "b"), [2, 2]), 0, 16
    )
    assert_close(interval, Interval(percent(0.5), percent(0.0), percent(1.0)))


def test_perplexity_is_exp_of_the_mean_over_tokens() -> None:
    interval = ppl_interval(curve_of([3.0, 10.0], ("a", "b"), [3, 2]), 0, 16)
    assert interval.estimate == pytest.approx(math.exp(13 / 5), rel=1e-12)
    assert interval.low == pytest.approx(math.exp(1.0), rel=1e-12)
    assert interval.high == pytest.approx(math.exp(5.0), rel=1e-12)


def test_windows_of_one_document_are_drawn_together() -> None:
    few = [curve_of(nll, ("a", "b", "c")) for nll in ([1.0, 2.0, 4.0], [1.5, 2.1, 3.0])]
    many = [
        curve_of([value for value in nll for _ in range(5)], tuple("aaaaabbbbbccccc"))
        for nll in ([1.0, 2.0, 4.0], [1.5, 2.1, 3.0])
    ]
    assert_close(paired_difference(many[0], many[1], 0, 16), paired_difference(few[0], few[1], 0, 16))


def test_the_order_of_windows_does_not_matter() -> None:
    first = paired_difference(
        curve_of([1.0, 2.0, 4.0], ("a", "b", "c")), curve_of([1.5, 2.1, 3.0], ("a", "b", "c")), 0, 16
    )
    second = paired_difference(
        curve_of([4.0, 1.0, 2.0], ("c", "a", "b")), curve_of([3.0, 1.5, 2.1], ("c", "a", "b")), 0, 16
    )
    assert_close(second, first)


def test_seeds_that_do_not_pair_up_are_refused() -> None:
    curve = curve_of([1.0, 1.0], ("a", "b"))
    with pytest.raises(ValueError, match="2 and 1 curves do not pair up"):
        seed_difference([curve, curve], [curve], 0, 16)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=8), st.floats(-3, 3))
def test_a_t_interval_moves_with_its_values(values: list[float], shift: float) -> None:
    plain, moved = t_interval(values), t_interval([value + shift for value in values])
    assert plain.low is not None and plain.high is not None and moved.low is not None
    assert plain.low <= plain.estimate <= plain.high
    assert moved.low == pytest.approx(plain.low + shift, abs=1e-9)


@given(seed=SEEDS, documents=st.integers(2, 30))
@settings(max_examples=20)
def test_turning_a_comparison_round_inverts_it(seed: int, documents: int) -> None:
    rng = np.random.default_rng(seed)
    names = tuple(f"d{index}" for index in range(documents))
    a, b = (curve_of(rng.uniform(0.5, 3.0, documents).tolist(), names) for _ in range(2))
    forth, back = (paired_difference(*pair, 0, 16, resamples=200) for pair in ((a, b), (b, a)))
    assert forth.high is not None and back.low is not None
    assert (1 + forth.estimate / 100) * (1 + back.estimate / 100) == pytest.approx(1, rel=1e-12)
    assert (1 + forth.high / 100) * (1 + back.low / 100) == pytest.approx(1, rel=1e-9)


@given(seed=SEEDS)
@settings(max_examples=3, derandomize=True)
def test_nineteen_of_twenty_intervals_hold_the_truth(seed: int) -> None:
    # 400 data sets of 16 documents with a true difference of 0.1 nats. With coverage 0.95 the count has a standard
    # deviation of 0.011; a plain percentile interval covers about 0.91 here.
    rng = np.random.default_rng(seed)
    names = tuple(f"d{index:02}" for index in range(16))
    flat = curve_of([1.0] * 16, names)
    hits = 0
    for draw in range(400):
        noisy = curve_of((1.1 + 0.2 * rng.standard_normal(16)).tolist(), names)
        interval = paired_difference(noisy, flat, 0, 16, resamples=300, seed=draw)
        assert interval.low is not None and interval.high is not None
        hits += interval.low <= percent(0.1) <= interval.high
    print(f"seed {seed}: {hits} of 400 intervals hold the truth")
    assert 0.925 <= hits / 400 <= 0.985


def test_draws_are_reproducible_and_whole() -> None:
    draws = document_draws(5, 1000, seed=3)
    assert (draws.sum(axis=1) == 5).all()
    assert (draws == document_draws(5, 1000, seed=3)).all()
    assert (draws != document_draws(5, 1000, seed=4)).any()
    assert draws.mean(axis=0) == pytest.approx(1.0, abs=0.1)


def test_a_band_encloses_the_curve_and_matches_its_range() -> None:
    curve = make_curve(noise=0.05, documents=12)
    band = ppl_band(curve, resamples=500)
    assert band is not None
    low_K, high_K = band
    assert ((low_K < curve.perplexity()) & (curve.perplexity() < high_K)).all()
    assert low_K.shape == high_K.shape == (len(curve.edges) - 1,)


def test_pooled_seeds_are_means_of_nll() -> None:
    pooled = pool([curve_of([1.0, 2.0], ("a", "b")), curve_of([3.0, 4.0], ("a", "b"))])
    assert pooled.range_perplexity(0, 16) == pytest.approx(math.exp(2.5), rel=1e-12)


def curve_with_levels(levels: list[float], noise: float = 0.0, documents: int = 16, seed: int = 0) -> Curve:
    """Bins (0, 16], (16, 32], ... with these mean NLL; trained up to position 32; noise per document and bin."""
    count = np.full((documents, len(levels)), 16)
    own = noise * np.random.default_rng(seed).standard_normal(count.shape)
    return dataclasses.replace(
        curve_of([1.0] * documents, tuple(f"d{index:02}" for index in range(documents))),
        edges=np.arange(len(levels) + 1) * 16,
        nll_sum=(np.asarray(levels) + own) * count,
        count=count,
        train_length=32,
    )


def test_a_falling_curve_generalizes() -> None:
    assert length_generalization(curve_with_levels([2.0, 1.5, 1.4, 1.3], noise=0.05)) == "holds"


def test_a_curve_that_is_exactly_level_generalizes() -> None:
    assert length_generalization(curve_with_levels([2.0, 1.5, 1.5, 1.5])) == "holds"


def test_a_rise_far_out_fails() -> None:
    assert length_generalization(curve_with_levels([2.0, 1.5, 1.4, 1.3, 1.9], noise=0.05)) == "fails"


def test_a_rise_within_the_noise_is_undecided() -> None:
    assert length_generalization(curve_with_levels([2.0, 1.5, 1.501, 1.499], noise=0.3)) == "undecided"


def test_a_tolerance_lets_a_small_rise_pass() -> None:
    curve = curve_with_levels([2.0, 1.5, 1.51])
    assert length_generalization(curve) == "fails"
    assert length_generalization(curve, tolerance_percent=2.0) == "holds"


def test_a_curve_that_diverges_fails() -> None:
    assert length_generalization(curve_with_levels([2.0, 1.5, 1.4, math.inf])) == "fails"


def test_one_document_leaves_the_verdict_open() -> None:
    assert length_generalization(curve_with_levels([2.0, 1.5, 1.9], documents=1)) == "undecided"


def test_windows_no_longer_than_the_training_context_leave_the_verdict_open() -> None:
    rising = dataclasses.replace(curve_with_levels([1.5, 1.9, 2.4]), train_length=48)
    assert length_generalization(rising) == "undecided"
    assert length_generalization(dataclasses.replace(rising, train_length=32)) == "fails"


def test_the_best_bin_comes_from_the_select_curve() -> None:
    report, select = curve_with_levels([1.40, 1.45, 1.44]), curve_with_levels([1.5, 1.45, 1.6])
    assert (lowest_bin(report), lowest_bin(select)) == (0, 1)
    assert length_generalization(report) == "fails"
    assert length_generalization(report, select) == "holds"


def test_the_best_bin_lies_within_the_training_context() -> None:
    assert lowest_bin(curve_with_levels([2.0, 1.5, 1.0, 0.5])) == 1
    with pytest.raises(ValueError, match="no bin of the curve ends within the training context of 8"):
        lowest_bin(dataclasses.replace(curve_with_levels([2.0, 1.5]), train_length=8))


def test_level_arms_are_rarely_called_failing() -> None:
    # No rise in truth, six later bins at once: at most about one verdict in twenty may be `fails`.
    verdicts = [
        length_generalization(
            curve_with_levels([2.0, *[1.5] * 7], noise=0.2, seed=seed),
            curve_with_levels([2.0, *[1.5] * 7], noise=0.2, seed=1000 + seed),
            resamples=300,
        )
        for seed in range(200)
    ]
    assert verdicts.count("fails") <= 16


LEVELS = [2.0, 1.5, 1.4, 1.45, 1.7, 1.3]
"""Bins end at 16, 32 (the training length), 48, 64, 80, 96: p* is exp(1.5) at t* = 32, and bin 80 lies above."""


def test_the_horizon_is_the_last_bin_before_the_first_above() -> None:
    assert horizon(curve_with_levels(LEVELS)) == 64
    assert horizon(curve_with_levels(LEVELS[:4])) == 64, "all that was measured"
    assert horizon(curve_with_levels([2.0, 1.5, 1.6, 1.4])) == 32, "the very next bin lies above"
    assert horizon(curve_with_levels([2.0, 1.5, 1.5, 1.5])) == 64, "level is not above"


def test_the_horizon_ends_at_what_is_not_finite() -> None:
    for lost in (math.inf, math.nan, -math.inf):
        assert horizon(curve_with_levels([2.0, 1.5, 1.4, lost, 1.4])) == 48


def test_a_tolerance_moves_the_horizon() -> None:
    assert horizon(curve_with_levels(LEVELS), tolerance_percent=percent(0.19)) == 64
    assert horizon(curve_with_levels(LEVELS), tolerance_percent=percent(0.21)) == 96


def test_the_horizon_takes_t_star_from_select() -> None:
    select = curve_with_levels([1.9, 2.0])
    # p* is then the first bin of the curve itself, 2.0, which nothing exceeds.
    assert horizon(curve_with_levels(LEVELS), select) == 96


def test_the_interval_of_the_horizon_worked_out_by_hand() -> None:
    # Of two documents, one stays level to the end (96), the other rises at once (32). Their mean rises in the last bin.
    two = curve_with_levels([2.0, 1.5, 1.4, 1.3, 1.2, 1.3], documents=2)
    levels_DB = np.array([[2.0, 1.5, 1.5, 1.5, 1.5, 1.5], [2.0, 1.5, 1.6, 1.6, 1.6, 1.6]])
    curve = dataclasses.replace(two, nll_sum=levels_DB * two.count)
    assert_close(horizon_interval(curve), Interval(32, 32, 96))
    assert horizon_interval(dataclasses.replace(curve, nll_sum=levels_DB[[0, 0]] * two.count)) == Interval(96, 96, 96)


def test_one_document_gives_the_horizon_no_interval() -> None:
    assert horizon_interval(curve_with_levels(LEVELS, documents=1)) == Interval(64)


@given(seed=SEEDS, tolerance=st.floats(0, 20))
@settings(max_examples=20)
def test_the_horizon_is_an_edge_within_its_interval_and_grows_with_the_tolerance(seed: int, tolerance: float) -> None:
    curve = curve_with_levels([2.0, 1.5, *[1.52] * 6], noise=0.2, seed=seed)
    strict, loose = horizon(curve), horizon(curve, tolerance_percent=tolerance)
    found = horizon_interval(curve, resamples=200)
    assert strict in curve.edges and 16 < strict <= loose <= curve.length
    assert found.low is not None and found.high is not None
    assert found.low in curve.edges and found.high in curve.edges and found.low <= found.high


def test_curves_with_other_training_lengths_are_compared_over_shared_edges() -> None:
    short, long = make_curve(1.2, train_length=64), make_curve(1.3, train_length=100)
    assert not np.array_equal(short.edges, long.edges)
    assert paired_difference(long, short, 4096, 8192).estimate == pytest.approx(percent(0.1), rel=1e-6)
    with pytest.raises(ValueError, match="different bins"):
        pool([short, long])
    with pytest.raises(ValueError, match="different windows"):
        paired_difference(short, make_curve(1.2, length=8192), 4096, 8192)
