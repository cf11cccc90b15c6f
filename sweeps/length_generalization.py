"""How far a model carries past its training length: Definition 3.2 of arXiv:2507.02782, and the horizon.

Both compare what lies past t*, the position of the lowest perplexity within the training context, with the perplexity
p* there, on the same windows; a resample of the bootstrap takes the same documents for both, so it is paired.

Shapes: D documents, R resamples, K bins. All in float64; perplexity is exp(sum / count).
"""

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from storage.curves import Curve
from sweeps.statistics import RESAMPLES, Floats, Interval, by_document, document_draws, levels, resampled_ratio

Verdict = Literal["holds", "fails", "undecided"]


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
    nll_DK, count_DK = by_document(curve, curve.nll_sum), by_document(curve, curve.count)
    if len(nll_DK) < 2 or best + 1 >= nll_DK.shape[1]:
        return "undecided"
    point_K = nll_DK.sum(axis=0) / count_DK.sum(axis=0) - math.log1p(tolerance_percent / 100)
    logs_RK = resampled_ratio(document_draws(len(nll_DK), resamples, seed), nll_DK, count_DK)
    rises = point_K[best + 1 :] - nll_DK[:, best].sum() / count_DK[:, best].sum()
    if not np.isfinite(rises).all():
        return "fails"
    drawn = logs_RK[:, best + 1 :] - logs_RK[:, best : best + 1]
    half = _simultaneous_half_width(drawn, len(nll_DK))
    if (rises - half > 0).any():
        return "fails"
    return "holds" if (rises + half <= 0).all() else "undecided"


def horizon(curve: Curve, select: Curve | None = None, *, tolerance_percent: float = 0.0) -> int:
    """The largest position up to which perplexity past t* stays at or below p*: an edge of a bin.

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
    nll_DK, count_DK = by_document(curve, curve.nll_sum), by_document(curve, curve.count)
    if len(nll_DK) < 2:
        return Interval(estimate)
    logs_RK = resampled_ratio(document_draws(len(nll_DK), resamples, seed), nll_DK, count_DK)
    best = lowest_bin(select if select is not None else curve)
    drawn_R = np.sort(_horizons(logs_RK, curve.edges, best, tolerance_percent))
    outer = levels(len(nll_DK))[0]
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
    level = 1 - 2 * levels(documents)[0]
    return np.asarray(np.quantile(scaled_RK.max(axis=1), level) * spread_K)
