"""How sure a difference is: intervals over documents by the bootstrap, over seeds by Student's t.

Shapes: W windows, D documents, R resamples, K bins, S seeds. All in float64; perplexity is exp(sum / count).

- Windows of one document stay together (they are not independent), so documents are what is drawn again.
- A paired difference takes the same windows under both arms; what a window costs under either cancels.
- With few documents the plain percentile interval is too narrow. The percentiles are therefore moved outwards to
  Phi(-sqrt(D / (D - 1)) t_{D-1}), the "expanded percentile interval" of T. Hesterberg, "What Teachers Should Know
  About the Bootstrap", The American Statistician 69(4), 2015.
- One document, or one seed, gives no interval: `low` and `high` are `None`, never a width of zero.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit  # type: ignore[import-untyped]

from storage.curves import Curve

Floats = NDArray[np.float64]
Verdict = Literal["holds", "fails", "undecided"]

RESAMPLES = 10_000
CONFIDENCE = 0.95
_RESAMPLES_AT_ONCE = 1_000


@dataclass(frozen=True)
class Interval:
    """An estimate and the ends of its interval (`None` where the data allow none)."""

    estimate: float
    low: float | None = None
    high: float | None = None


def paired_difference(
    curve_a: Curve, curve_b: Curve, lo: int, hi: int, *, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Perplexity of `curve_a` relative to `curve_b` over positions (lo, hi], in per cent (-10: a is 10 % lower).

    exp(mean nll_a - mean nll_b) - 1 from the same windows, with the bootstrap interval over documents. Windows that
    differ are a ValueError.
    """
    require_same_windows(curve_a, curve_b)
    sums = [_document_sums(curve, lo, hi) for curve in (curve_a, curve_b)]
    draws = document_draws(len(sums[0]), resamples, seed)
    return _as_percent(_interval(_mean_nll(sums[0]) - _mean_nll(sums[1]), draws, sums[0], sums[1]))


def ppl_interval(curve: Curve, lo: int, hi: int, *, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """Perplexity over positions (lo, hi] with its bootstrap interval over documents."""
    sums_D2 = _document_sums(curve, lo, hi)
    draws = document_draws(len(sums_D2), resamples, seed)
    return _map(_interval(_mean_nll(sums_D2), draws, sums_D2), _exp)


def seed_difference(curves_a: Sequence[Curve], curves_b: Sequence[Curve], lo: int, hi: int) -> Interval:
    """As `paired_difference`, over seeds: curves_a[i] and curves_b[i] belong to one seed.

    A t interval (df = S - 1) on the differences of log perplexity, taken to per cent at the end.
    """
    if len(curves_a) != len(curves_b) or not curves_a:
        raise ValueError(f"{len(curves_a)} and {len(curves_b)} curves do not pair up by seed")
    for curve_a, curve_b in zip(curves_a, curves_b, strict=True):
        require_same_windows(curve_a, curve_b)
    logs_S = [_log_ppl(a, lo, hi) - _log_ppl(b, lo, hi) for a, b in zip(curves_a, curves_b, strict=True)]
    return _as_percent(t_interval(logs_S))


def t_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Mean of the values with Student's interval, df = n - 1; no interval from one value."""
    sample = np.asarray(values, dtype=np.float64)
    mean = float(sample.mean())
    if len(sample) < 2 or not np.isfinite(sample).all():
        return Interval(mean)
    half = float(stdtrit(len(sample) - 1, (1 + confidence) / 2) * sample.std(ddof=1) / math.sqrt(len(sample)))
    return Interval(mean, mean - half, mean + half)


def ppl_band(curve: Curve, *, resamples: int = 1_000, seed: int = 0) -> tuple[Floats, Floats] | None:
    """Pointwise 95 % bounds of perplexity, each of shape (K,); `None` when there is only one document."""
    nll_DK, count_DK = _by_document(curve, curve.nll_sum), _by_document(curve, curve.count)
    if len(nll_DK) < 2:
        return None
    logs_RK = _resampled_ratio(document_draws(len(nll_DK), resamples, seed), nll_DK, count_DK)
    low_K, high_K = np.quantile(logs_RK, _levels(len(nll_DK)), axis=0)
    return np.exp(low_K), np.exp(high_K)


def length_generalization(
    curve: Curve,
    select: Curve | None = None,
    *,
    tolerance_percent: float = 0.0,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Verdict:
    """Definition 3.2 of arXiv:2507.02782 with three answers.

    p* is the lowest perplexity within the training context, reached at t*. Length generalisation `holds` if
    PPL(t) <= p* for every later bin: here, if every upper bound of log PPL(t) - log p* is at most 0. It `fails` if
    some lower bound is above 0 or some PPL(t) is not finite; otherwise the data leave it `undecided`. The bounds
    hold for all bins at once (bootstrap over documents, largest standardised deviation). t* is taken from `select`,
    so that the luck of the draw that makes a bin the lowest does not enter; without it from the curve itself, which
    leans towards `fails`. Windows no longer than the training context leave it `undecided`.
    `tolerance_percent` lets PPL(t) lie that much above p* and still count as not above it.
    """
    if curve.length <= curve.train_length:
        return "undecided"
    best = lowest_bin(select if select is not None else curve)
    nll_DK, count_DK = _by_document(curve, curve.nll_sum), _by_document(curve, curve.count)
    if len(nll_DK) < 2 or best + 1 >= nll_DK.shape[1]:
        return "undecided"
    point_K = nll_DK.sum(axis=0) / count_DK.sum(axis=0) - math.log1p(tolerance_percent / 100)
    logs_RK = _resampled_ratio(document_draws(len(nll_DK), resamples, seed), nll_DK, count_DK)
    rises = point_K[best + 1 :] - nll_DK[:, best].sum() / count_DK[:, best].sum()
    if not np.isfinite(rises).all():
        return "fails"
    drawn = logs_RK[:, best + 1 :] - logs_RK[:, best : best + 1]
    half = _simultaneous_half_width(drawn, len(nll_DK))
    if (rises - half > 0).any():
        return "fails"
    return "holds" if (rises + half <= 0).all() else "undecided"


def horizon(curve: Curve, select: Curve | None = None, *, tolerance_percent: float = 0.0) -> int:
    """The largest position up to which perplexity past t* stays at or below p*: a bin edge, the window's length at most.

    p* and t* as in `length_generalization`: t* is the bin of lowest perplexity within the training context of `select`
    (without it of the curve itself), p* what the curve has there. The horizon is the right edge of the last bin before
    the first one past t* whose perplexity lies above p* (by more than `tolerance_percent`) or is not finite. It is
    the right edge of t* itself when the very next bin lies above.
    """
    best = lowest_bin(select if select is not None else curve)
    logs_K = np.asarray(curve.nll_sum.sum(axis=0) / curve.count.sum(axis=0), np.float64)
    return int(_horizons(logs_K[None], curve.edges, best, tolerance_percent)[0])


def horizon_interval(
    curve: Curve,
    select: Curve | None = None,
    *,
    tolerance_percent: float = 0.0,
    resamples: int = 1_000,
    seed: int = 0,
) -> Interval:
    """`horizon` with the ends of its bootstrap interval over documents, in positions; both are bin edges.

    A resample takes the same documents for p* and for what is compared with it, so it is paired; t* stays.
    """
    estimate = horizon(curve, select, tolerance_percent=tolerance_percent)
    nll_DK, count_DK = _by_document(curve, curve.nll_sum), _by_document(curve, curve.count)
    if len(nll_DK) < 2:
        return Interval(estimate)
    logs_RK = _resampled_ratio(document_draws(len(nll_DK), resamples, seed), nll_DK, count_DK)
    best = lowest_bin(select if select is not None else curve)
    drawn_R = np.sort(_horizons(logs_RK, curve.edges, best, tolerance_percent))
    outer = _levels(len(nll_DK))[0]
    # Order statistics, as positions between two edges are no answer.
    beyond = min(int(outer * resamples), (resamples - 1) // 2)
    return Interval(estimate, int(drawn_R[beyond]), int(drawn_R[resamples - 1 - beyond]))


def _horizons(logs_RK: Floats, edges: NDArray[np.int64], best: int, tolerance_percent: float) -> NDArray[np.int64]:
    """(R,) the horizon of each row of log perplexities by bin."""
    most_R1 = logs_RK[:, best : best + 1] + math.log1p(tolerance_percent / 100)
    # Not `>`: what is not a number is above as well.
    above_RK = ~(logs_RK[:, best + 1 :] <= most_R1) | ~np.isfinite(logs_RK[:, best + 1 :])
    stays_R = np.where(above_RK.any(axis=1), above_RK.argmax(axis=1), above_RK.shape[1])
    return np.asarray(edges[best + 1 + stays_R], np.int64)


def lowest_bin(curve: Curve) -> int:
    """Index of the bin of lowest perplexity among those that end within the training context (t*)."""
    inside = int(np.searchsorted(curve.edges, curve.train_length, side="right")) - 1
    if inside < 1:
        raise ValueError(f"no bin of the curve ends within the training context of {curve.train_length} positions")
    return int(np.argmin(curve.perplexity()[:inside]))


def _simultaneous_half_width(drawn_RK: Floats, documents: int) -> Floats:
    spread_K = drawn_RK.std(axis=0)
    # A bin that never moves (equal values) has no uncertainty to standardise by.
    scaled_RK = np.abs(drawn_RK - drawn_RK.mean(axis=0)) / np.where(spread_K > 0, spread_K, 1.0)
    level = 1 - 2 * _levels(documents)[0]
    return np.asarray(np.quantile(scaled_RK.max(axis=1), level) * spread_K)


def require_same_windows(curve_a: Curve, curve_b: Curve) -> None:
    """Raise ValueError unless both curves were measured on the same windows in the same order."""
    same_documents = np.array_equal(np.asarray(curve_a.document_ids), np.asarray(curve_b.document_ids))
    same_starts = np.array_equal(np.asarray(curve_a.starts), np.asarray(curve_b.starts))
    # Edges may differ: each curve has its training length among them.
    if not (same_documents and same_starts and curve_a.length == curve_b.length):
        raise ValueError("the two curves come from different windows, so they cannot be compared in pairs")


def pool(curves: Sequence[Curve]) -> Curve:
    """The curves of several seeds on the same windows as one: NLL sums and counts added, window by window."""
    first = curves[0]
    for other in curves[1:]:
        require_same_windows(first, other)
        if not np.array_equal(first.edges, other.edges):
            raise ValueError("the curves of several seeds have different bins, so they cannot be added up")
    return replace(
        first,
        nll_sum=np.sum([curve.nll_sum for curve in curves], axis=0),
        count=np.sum([curve.count for curve in curves], axis=0),
        nonfinite=np.sum([curve.nonfinite for curve in curves], axis=0),
    )


def document_draws(documents: int, resamples: int, seed: int) -> NDArray[np.int64]:
    """How often each document is drawn in each resample, shape (R, D); a row sums to D."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(documents, np.full(documents, 1.0 / documents), size=resamples)


def _by_document(curve: Curve, values: NDArray[np.generic]) -> Floats:
    """Sum over the windows of each document: (W, ...) -> (D, ...), documents in sorted order."""
    _, index_W = np.unique(np.asarray(curve.document_ids), return_inverse=True)
    summed = np.zeros((int(index_W.max()) + 1, *values.shape[1:]), dtype=np.float64)
    np.add.at(summed, index_W, values)
    return summed


def _document_sums(curve: Curve, lo: int, hi: int) -> Floats:
    """NLL sum and count of each document over (lo, hi], shape (D, 2)."""
    nll_W, count_W = curve.window_range_nll(lo, hi)
    return _by_document(curve, np.stack([np.asarray(nll_W, np.float64), np.asarray(count_W, np.float64)], axis=1))


def _mean_nll(sums_D2: Floats) -> float:
    nll, count = sums_D2.sum(axis=0)
    return float(nll / count)


def _log_ppl(curve: Curve, lo: int, hi: int) -> float:
    return _mean_nll(_document_sums(curve, lo, hi))


def _resampled_ratio(draws_RD: NDArray[np.int64], nll_DK: Floats, count_DK: Floats) -> Floats:
    blocks = [slice(first, first + _RESAMPLES_AT_ONCE) for first in range(0, len(draws_RD), _RESAMPLES_AT_ONCE)]
    # A diverged window makes what is drawn with it not finite; that is for the caller to see, not to warn of.
    with np.errstate(invalid="ignore"):
        return np.concatenate([(draws_RD[rows] @ nll_DK) / (draws_RD[rows] @ count_DK) for rows in blocks])


def _interval(
    estimate: float, draws_RD: NDArray[np.int64], sums_D2: Floats, minus_D2: Floats | None = None
) -> Interval:
    documents = len(sums_D2)
    if documents < 2 or not math.isfinite(estimate):
        return Interval(estimate)
    drawn_R = _resampled_ratio(draws_RD, sums_D2[:, 0], sums_D2[:, 1])
    if minus_D2 is not None:
        drawn_R = drawn_R - _resampled_ratio(draws_RD, minus_D2[:, 0], minus_D2[:, 1])
    low, high = np.quantile(drawn_R, _levels(documents))
    return Interval(estimate, float(low), float(high))


def _levels(documents: int) -> tuple[float, float]:
    t = float(stdtrit(documents - 1, (1 + CONFIDENCE) / 2))
    outer = float(ndtr(-math.sqrt(documents / (documents - 1)) * t))
    return outer, 1 - outer


def _map(interval: Interval, function: Callable[[float], float]) -> Interval:
    low, high = (None if end is None else function(end) for end in (interval.low, interval.high))
    return Interval(function(interval.estimate), low, high)


def _exp(value: float) -> float:
    # A diverged arm may lie beyond what a double holds; infinity is then the honest answer.
    with np.errstate(over="ignore"):
        return float(np.exp(value))


def _as_percent(interval: Interval) -> Interval:
    return _map(interval, lambda log: 100 * (_exp(log) - 1))
