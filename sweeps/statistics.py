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

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit  # type: ignore[import-untyped]

from storage.curves import Curve

Floats = NDArray[np.float64]

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
    nll_DK, count_DK = by_document(curve, curve.nll_sum), by_document(curve, curve.count)
    if len(nll_DK) < 2:
        return None
    logs_RK = resampled_ratio(document_draws(len(nll_DK), resamples, seed), nll_DK, count_DK)
    low_K, high_K = np.quantile(logs_RK, levels(len(nll_DK)), axis=0)
    return np.exp(low_K), np.exp(high_K)


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


def by_document(curve: Curve, values: NDArray[np.generic]) -> Floats:
    """Sum over the windows of each document: (W, ...) -> (D, ...), documents in sorted order."""
    _, index_W = np.unique(np.asarray(curve.document_ids), return_inverse=True)
    summed = np.zeros((int(index_W.max()) + 1, *values.shape[1:]), dtype=np.float64)
    np.add.at(summed, index_W, values)
    return summed


def _document_sums(curve: Curve, lo: int, hi: int) -> Floats:
    """NLL sum and count of each document over (lo, hi], shape (D, 2)."""
    nll_W, count_W = curve.window_range_nll(lo, hi)
    return by_document(curve, np.stack([np.asarray(nll_W, np.float64), np.asarray(count_W, np.float64)], axis=1))


def _mean_nll(sums_D2: Floats) -> float:
    nll, count = sums_D2.sum(axis=0)
    return float(nll / count)


def _log_ppl(curve: Curve, lo: int, hi: int) -> float:
    return _mean_nll(_document_sums(curve, lo, hi))


def resampled_ratio(draws_RD: NDArray[np.int64], nll_DK: Floats, count_DK: Floats) -> Floats:
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
    drawn_R = resampled_ratio(draws_RD, sums_D2[:, 0], sums_D2[:, 1])
    if minus_D2 is not None:
        drawn_R = drawn_R - resampled_ratio(draws_RD, minus_D2[:, 0], minus_D2[:, 1])
    low, high = np.quantile(drawn_R, levels(documents))
    return Interval(estimate, float(low), float(high))


def levels(documents: int) -> tuple[float, float]:
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
