"""The contract of the state bank: what every implementation promises.

- `withdraw(s, rows)` gives what was deposited at step s - 1, and zeros at step 0; it waits for late rows.
- The two newest steps are kept. Writing older ones is an error; writing a kept row again is harmless (last wins).
- Results depend on (step, row) alone: not on shards, workers, micro-batches or the order of arrival.
- A row that is not finite is zeroed and counted on its way in, so nothing that leaves the bank is NaN or infinite.

Shape legend: G rows of the global batch, n rows of one call, E elements of a packed row, K moment groups.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from storage.bank.layout import BankLayout, Float32, Float64, Int64, Wire, encode, zero_nonfinite
from storage.bank.moments import Moments, reduce_moments
from storage.errors import StorageError

_SAMPLE_STREAM = 0x62616E6B
"""Keeps the stream of `sample` apart from other random streams with the same seed ("bank" in ASCII)."""


class BankLostError(RuntimeError):
    """A shard of the bank died. The message names the shard and its rows; go on from a checkpoint (`restore`)."""


class BankTimeoutError(RuntimeError):
    """Rows that were waited for did not arrive in time. The message names the step and the first missing row."""


class StateBank(ABC):
    """Keeps the final states of one optimiser step as the initial states of the next.

    One client serves one thread; other workers of the trial use clients of their own.
    As a context manager it closes at the end.
    """

    def __init__(self, layout: BankLayout, timeout_s: float) -> None:
        """Args: layout: the bank's shape. timeout_s: seconds a read waits for rows that have not arrived."""
        self.layout = layout
        self.timeout_s = timeout_s

    def deposit(self, step: int, rows: npt.ArrayLike, states: Float32) -> Int64:
        """Keep the final states of `rows` at `step`. May return before they are stored; an error then shows later.

        Args:
            step: the optimiser step, from 0.
            rows: (n,) distinct global row numbers in any order.
            states: (n, E) float32; may be overwritten as soon as this returns.

        Returns:
            The global numbers of rows that were not finite and were kept as zeros.

        Raises:
            StorageError: wrong step, row, shape or dtype, or a step older than the two that are kept.
        """
        rows_n = self._check(step, rows, distinct=True)
        expected = (rows_n.size, self.layout.elements)
        if states.shape != expected or states.dtype != np.float32:
            raise StorageError(
                f"states deposited at step {step} are {states.dtype} of shape {states.shape}; "
                f"give float32 of {expected}"
            )
        good, bad = zero_nonfinite(np.ascontiguousarray(states), self.layout.wire_dtype)
        zeroed = np.zeros(rows_n.size, dtype=bool)
        zeroed[bad] = True
        if rows_n.size:
            self._deposit(step, rows_n, encode(good, self.layout.wire_dtype), zeroed)
        return rows_n[bad]

    def withdraw(self, step: int, rows: npt.ArrayLike, out: Float32 | None = None) -> Float32:
        """What was deposited for `rows` at step - 1; zeros at step 0.

        Args:
            step: the optimiser step that starts from these states.
            rows: (n,) global row numbers, in any order, repeats allowed.
            out: (n, E) float32, C-contiguous, writable: filled and returned. Reusing one (pinned) buffer
                is several times faster than fresh memory. Without it a new array is made.

        Returns:
            (n, E) float32 that belongs to the caller.

        Raises:
            BankTimeoutError: a row did not arrive in time.
            BankLostError: a shard died.
            StorageError: wrong arguments, or a step older than the two that are kept.
        """
        rows_n = self._check(step, rows)
        out_ne = self._output(rows_n.size, out)
        if step == 0 or not rows_n.size:
            out_ne.fill(0.0)
        else:
            self._withdraw(step, rows_n, out_ne)
        return out_ne

    def sample(self, step: int, count: int, seed: int) -> tuple[Int64, Float32]:
        """`count` distinct rows of the generation step - 1, drawn over all shards alike, and their states.

        Returns:
            The rows (count,), as `sample_rows` draws them, and their states (count, E) float32.
        """
        rows = sample_rows(self.layout.rows, step, count, seed)
        return rows, self.withdraw(step, rows)

    def merge_moments(self, step: int, rows: npt.ArrayLike, partials: Float64) -> None:
        """Keep the partial sums of `rows` at `step`; a repeat replaces them. May return before they are stored.

        Args:
            partials: (n, K, 3) float64 as `row_moments` makes them; zeros for rows that are not to count.
        """
        rows_n = self._check(step, rows, distinct=True)
        expected = (rows_n.size, len(self.layout.groups), 3)
        if not self.layout.groups:
            raise StorageError("this bank keeps no moments; name the groups in BankLayout(groups=...)")
        if partials.shape != expected or partials.dtype != np.float64:
            raise StorageError(
                f"moments merged at step {step} are {partials.dtype} of shape {partials.shape}; "
                f"give float64 of {expected}"
            )
        if not np.isfinite(partials).all():
            raise StorageError(
                f"moments merged at step {step} are not finite; give zeros for rows that are not to count"
            )
        if rows_n.size:
            self._merge_moments(step, rows_n, np.ascontiguousarray(partials))

    def moments(self, step: int) -> Moments:
        """The moments over all G rows merged at this same `step`; waits until every row has arrived."""
        self._check(step, [])
        if not self.layout.groups:
            raise StorageError("this bank keeps no moments; name the groups in BankLayout(groups=...)")
        return reduce_moments(self._moments(step), self.layout)

    def prefetch(self, step: int, rows: npt.ArrayLike) -> None:
        """Start fetching what `withdraw(step, rows)` will ask for. Call it right after the deposit of step - 1."""
        rows_n = self._check(step, rows)
        if step > 0 and rows_n.size:
            self._prefetch(step, rows_n)

    @abstractmethod
    def flush(self) -> None:
        """Wait until all that this client wrote is stored, and raise what went wrong."""

    @abstractmethod
    def snapshot(self, folder: Path, step: int | None = None) -> None:
        """Write the generation `step` (default: the newest) into `folder`; replaces an earlier snapshot there.

        Waits for its missing rows. With several workers: flush each, let all meet at a barrier, then one snapshots.
        """

    @abstractmethod
    def restore(self, folder: Path) -> None:
        """Replace all content by a snapshot. The number of shards may differ from the one that wrote it."""

    @abstractmethod
    def clear(self) -> None:
        """Forget all generations and counters, to start again from step 0."""

    @abstractmethod
    def counters(self) -> dict[str, int]:
        """Since the start: `deposits` and `zeroed_rows` (rows), `bytes` (on the wire). A repeated row counts once."""

    @abstractmethod
    def close(self) -> None:
        """Flush and release everything this client started. A second call does nothing."""

    @abstractmethod
    def _deposit(self, step: int, rows: Int64, block: Wire, zeroed: npt.NDArray[np.bool_]) -> None: ...

    @abstractmethod
    def _withdraw(self, step: int, rows: Int64, out: Float32) -> None: ...

    @abstractmethod
    def _prefetch(self, step: int, rows: Int64) -> None: ...

    @abstractmethod
    def _merge_moments(self, step: int, rows: Int64, partials: Float64) -> None: ...

    @abstractmethod
    def _moments(self, step: int) -> Float64: ...

    def _check(self, step: int, rows: npt.ArrayLike, distinct: bool = False) -> Int64:
        if step < 0:
            raise StorageError(f"the bank was asked for step {step}; steps count from 0")
        given = np.asarray(rows)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise StorageError(
                f"rows at step {step} are {given.dtype} of shape {given.shape}; give a list of row numbers"
            )
        rows_n = given.astype(np.int64)
        outside = rows_n[(rows_n < 0) | (rows_n >= self.layout.rows)]
        if outside.size:
            raise StorageError(
                f"row {outside[0]} at step {step} is outside the bank; rows are 0 to {self.layout.rows - 1}"
            )
        if distinct and np.unique(rows_n).size < rows_n.size:
            raise StorageError(f"rows written at step {step} hold a row twice; give every row once")
        return rows_n

    def _output(self, count: int, out: Float32 | None) -> Float32:
        shape = (count, self.layout.elements)
        if out is None:
            return np.empty(shape, dtype=np.float32)
        if out.shape != shape or out.dtype != np.float32 or not out.flags.c_contiguous or not out.flags.writeable:
            raise StorageError(
                f"out is {out.dtype} of shape {out.shape}; give a writable contiguous float32 array of {shape}"
            )
        return out

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def sample_rows(rows: int, step: int, count: int, seed: int) -> Int64:
    """`count` distinct rows of 0 .. rows - 1, keyed by (seed, step) alone; `count == rows` gives a permutation.

    Every row gets a 64-bit key from numpy's Philox stream, which numpy keeps stable between releases; the rows with
    the smallest keys are drawn, in the order of their keys.
    """
    if not 1 <= count <= rows:
        raise StorageError(f"a sample of {count} rows was asked for at step {step}; give a count from 1 to {rows}")
    if seed < 0:
        raise StorageError(f"the seed of the sample at step {step} is {seed}; give a whole number of at least 0")
    keys = np.random.Philox(np.random.SeedSequence([_SAMPLE_STREAM, seed, step])).random_raw(rows)
    return np.argsort(keys, kind="stable")[:count].astype(np.int64)
