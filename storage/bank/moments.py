"""Moments of states for fitted noise: float64 partial sums per row, reduced in row order.

A row's partials depend on that row alone and the reduction runs over all G rows in order, so neither workers,
micro-batches nor shards change one bit of the result.
Shape legend: n rows of one call, E elements of a packed row, K groups, 3 sums (count, sum, sum of squares).
"""

from dataclasses import dataclass

import numpy as np

from storage.bank.layout import BankLayout, Float32, Float64
from storage.errors import StorageError


@dataclass(frozen=True)
class Moments:
    """Sums over all elements of all good rows of one step, one entry per group of the layout. All float64."""

    names: tuple[str, ...]
    count: Float64
    """(K,) number of elements summed; rows that were not finite are not among them."""
    total: Float64
    """(K,) sum of the elements."""
    squares: Float64
    """(K,) sum of their squares."""

    @property
    def mean(self) -> Float64:
        """(K,) mean of the elements; NaN where nothing was counted."""
        with np.errstate(invalid="ignore"):
            return self.total / self.count

    @property
    def std(self) -> Float64:
        """(K,) population standard deviation; NaN where nothing was counted."""
        with np.errstate(invalid="ignore"):
            return np.sqrt(np.maximum(self.squares / self.count - self.mean**2, 0.0))


def row_moments(states: Float32, layout: BankLayout) -> Float64:
    """Partial sums of each row, for `StateBank.merge_moments`.

    Args:
        states: (n, E) float32.

    Returns:
        (n, K, 3) float64: count, sum, sum of squares. A row with a NaN or an infinity anywhere gives zeros.
    """
    partials = np.zeros((len(states), len(layout.groups), 3))
    for row, state in enumerate(states):
        if not np.isfinite(state).all():
            continue
        for group, (_, start, stop) in enumerate(layout.groups):
            values = state[start:stop].astype(np.float64)
            # Not a dot product: BLAS may order its sum by alignment and thread count, numpy's reduction does not.
            partials[row, group] = stop - start, values.sum(), np.square(values).sum()
    return partials


def reduce_moments(partials: Float64, layout: BankLayout) -> Moments:
    """The sum of all rows' partials in row order.

    Args:
        partials: (G, K, 3) float64 in row order.
    """
    if partials.shape != (layout.rows, len(layout.groups), 3):
        raise StorageError(
            f"moments of shape {partials.shape} do not fit the bank; "
            f"give ({layout.rows}, {len(layout.groups)}, 3): rows, groups, sums"
        )
    sums = np.add.reduce(np.ascontiguousarray(partials), axis=0)
    return Moments(tuple(name for name, _, _ in layout.groups), sums[:, 0], sums[:, 1], sums[:, 2])
