"""Moments of states for fitted noise: float64 partial sums per row, reduced in row order.

A row's partials depend on that row alone and the reduction runs over all G rows in order, so neither workers,
micro-batches nor shards change one bit of the result.
Shape legend: n rows of one call, E elements of a packed row, K groups, 3 sums (count, sum, sum of squares).
"""

from dataclasses import dataclass, replace
from functools import lru_cache

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
    # One row at a time: its float64 copy stays in the cache, and its sums cannot depend on the rows beside it.
    for sums, state in zip(partials, states, strict=True):
        if not np.isfinite(state).all():
            continue
        for run in group_runs(layout.groups):
            values_kw = state[run.start : run.start + run.count * run.width].astype(np.float64)
            values_kw = values_kw.reshape(run.count, run.width)
            # Not a dot product: BLAS may order its sum by alignment and thread count, numpy's reduction does not.
            kept = sums[run.first : run.first + run.count]
            kept[:, 0], kept[:, 1], kept[:, 2] = run.width, values_kw.sum(1), np.square(values_kw).sum(1)
    return partials


@dataclass(frozen=True)
class GroupRun:
    """Neighbouring groups of equal width, such as the heads of a layer: one reshape serves them all."""

    first: int
    """Index of the first group."""
    count: int
    start: int
    """First element."""
    width: int
    """Elements of each group."""


@lru_cache(maxsize=16)
def group_runs(groups: tuple[tuple[str, int, int], ...]) -> tuple[GroupRun, ...]:
    """The groups as few runs of neighbours of equal width, in their order."""
    runs: list[GroupRun] = []
    for index, (_, start, stop) in enumerate(groups):
        last = runs[-1] if runs else None
        if last and last.width == stop - start and last.start + last.count * last.width == start:
            runs[-1] = replace(last, count=last.count + 1)
        else:
            runs.append(GroupRun(index, 1, start, stop - start))
    return tuple(runs)


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
