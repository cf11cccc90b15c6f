"""Sliced Wasserstein distance of order 1 between samples: the mean over directions of that of their projections.

In one dimension W_1 is the area between the quantile functions, which for samples of any two sizes is an exact sum. Of
order 1 and not 2, because it is a mean of distances: in the unit of the states, with a triangle inequality that a mean
over directions and layers keeps, and not ruled by single entries far out. Legend: n and m points, D directions.
"""

import numpy as np


def wasserstein(one_nD: np.ndarray, other_mD: np.ndarray) -> np.ndarray:
    """(D,) float64: W_1 between the columns of two samples, in their unit; infinite where a number is not finite.

    Raises ValueError for a sample without points.
    """
    n, m = len(one_nD), len(other_mD)
    if not n or not m:
        raise ValueError(f"samples of {n} and {m} points have no distance; give at least one point each")
    finite_D = np.isfinite(one_nD).all(axis=0) & np.isfinite(other_mD).all(axis=0)
    # In units of 1 / nm the quantile functions step at multiples of m and of n: whole numbers, so nothing is rounded.
    steps = np.union1d(np.arange(n + 1) * m, np.arange(m + 1) * n)
    widths, starts = np.diff(steps), steps[:-1]
    one_sD = np.sort(one_nD.astype(np.float64), axis=0)[starts // m]
    other_sD = np.sort(other_mD.astype(np.float64), axis=0)[starts // n]
    with np.errstate(invalid="ignore"):
        distance_D = widths @ np.abs(one_sD - other_sD) / (n * m)
    return np.where(finite_D, distance_D, np.inf)
