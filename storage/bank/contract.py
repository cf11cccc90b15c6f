"""The contract of the state bank: what every implementation promises.

- `withdraw(s, rows)` gives what was deposited at step s - 1, and zeros at step 0; it waits for late rows.
- The two newest steps are kept. Writing older ones is an error; writing a kept row again is harmless (last wins).
- Results depend on (step, row) alone: not on shards, workers, micro-batches or the order of arrival.
- The reservoir as of step s is a uniform sample of all rows of all steps before s; rows of step s change nothing in it.
- A row that is not finite is zeroed and counted on its way in, so nothing that leaves the bank is NaN or infinite.

Shape legend: G rows of the global batch, n rows of one call, E elements of a packed row, K moment groups.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from storage.bank.digest import content_digest
from storage.bank.layout import BankLayout, Float32, Float64, Int64
from storage.bank.moments import Moments, reduce_moments
from storage.bank.reservoir import NO_LIMIT, Offer, Reservoir, merge_reservoirs, reservoir_keys
from storage.bank.wire import encoded, zero_nonfinite
from storage.errors import StorageError

_SAMPLE_STREAM = 0x62616E6B
"""Keeps the stream of `sample` apart from other random streams with the same seed ("bank" in ASCII)."""


class BankLostError(RuntimeError):
    """A shard of the bank died. The message names the shard and its rows; go on from a checkpoint (`restore`)."""


class BankTimeoutError(RuntimeError):
    """Rows that were waited for did not arrive in time. The message names the step and the first missing row."""


class Holdings(NamedTuple):
    """What a bank holds of one step."""

    states: bool
    moments: bool
    reservoir: bool
    """Whether anything was ever offered, so that every row of that step is to be offered too."""


class StateBank(ABC):
    """Keeps the final states of one optimiser step as the initial states of the next.

    One client serves one thread; other workers of the trial use clients of their own.
    As a context manager it closes at the end.
    """

    def __init__(self, layout: BankLayout, timeout_s: float) -> None:
        """Args: layout: the bank's shape. timeout_s: seconds a read waits for rows that have not arrived."""
        self.layout = layout
        self.timeout_s = timeout_s
        # The step as of which the reservoir was last read, and its largest key: it only ever falls from there.
        self._limit = (0, NO_LIMIT)

    def deposit(self, step: int, rows: npt.ArrayLike, states: Float32) -> None:
        """Keep the final states of `rows` at `step`. May return before they are stored; an error then shows later.

        Rows that are not finite are kept as zeros and counted (`counters`).

        Args:
            step: the optimiser step, from 0.
            rows: (n,) distinct global row numbers in any order.
            states: (n, E) float32; may be overwritten as soon as this returns.

        Raises:
            StorageError: wrong step, row, shape or dtype, or a step older than the two that are kept.
        """
        rows_n = self._check(step, rows, distinct=True)
        self._check_states("deposited", step, rows_n.size, states)
        if rows_n.size:
            self._deposit(step, rows_n, np.ascontiguousarray(states))

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

    def offer(self, step: int, rows: npt.ArrayLike, states: Float32, seed: int) -> None:
        """Offer the states of `rows` at `step` to the reservoir. Every row of every step is to be offered once.

        Repeats are harmless. May return before the states are stored; only those that can still be drawn travel.

        Args:
            step: the optimiser step, from 0.
            rows: (n,) distinct global row numbers in any order.
            states: (n, E) float32; rows that are not finite count as offered and are never drawn.
            seed: of the drawing; the same in every call.

        Raises:
            StorageError: wrong arguments, another seed, a step older than the two newest, or a bank without reservoir.
        """
        rows_n = self._check(step, rows, distinct=True)
        self._check_reservoir()
        self._check_states("offered", step, rows_n.size, states)
        keys = reservoir_keys(seed, step, rows_n)
        known, limit = self._limit
        if step < known:  # another client restored or cleared the bank
            self._limit = known, limit = 0, NO_LIMIT
        chosen = np.flatnonzero(keys <= np.uint64(limit))
        chosen = np.delete(chosen, zero_nonfinite(states[chosen], self.layout.wire_dtype)[1])
        chosen = np.sort(chosen[np.argsort(keys[chosen])[: self.layout.capacity]])
        if rows_n.size:
            block = encoded(states[chosen], self.layout)
            self._offer(Offer(step, seed, rows_n, keys[chosen], rows_n[chosen], block, limit))

    def reservoir(self, step: int) -> Reservoir:
        """Which entries are in the reservoir as of `step`: the smallest keys among all rows of steps < `step`.

        Waits until every row of step - 1 was offered; empty at step 0. Can be read until rows of step + 1 are offered.

        Raises:
            BankTimeoutError: a row was not offered in time.
            StorageError: a step older than the newest that was offered.
        """
        self._check(step, [])
        self._check_reservoir()
        if step == 0:
            return merge_reservoirs([], self.layout.capacity)
        found = self._reservoir(step)
        full = len(found) == self.layout.capacity
        self._limit = step, int(found.keys[-1]) if full else NO_LIMIT
        return found

    def reservoir_states(self, steps: npt.ArrayLike, rows: npt.ArrayLike, out: Float32 | None = None) -> Float32:
        """The states of chosen entries of the reservoir as last read, so that a caller fetches only the new ones.

        Args:
            steps: (n,) the steps of the entries.
            rows: (n,) their rows.
            out: (n, E) float32, C-contiguous, writable: filled and returned.

        Returns:
            (n, E) float32 that belongs to the caller.

        Raises:
            StorageError: an entry is not in the reservoir.
        """
        self._check_reservoir()
        rows_n, steps_n = self._check(0, rows), np.asarray(steps, dtype=np.int64)
        if steps_n.shape != rows_n.shape:
            raise StorageError(f"{steps_n.size} steps and {rows_n.size} rows name no entries; give one step per row")
        out_ne = self._output(rows_n.size, out)
        if rows_n.size:
            self._reservoir_states(steps_n, rows_n, out_ne)
        return out_ne

    def digest(self) -> str:
        """SHA-256 of the newest generation (states and moments, in row order) and the reservoir (in key order).

        Independent of shards, workers and order of arrival. Waits for missing rows. With several workers: flush each,
        let all meet at a barrier, then one asks.
        """
        return content_digest(self)

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
    def _newest(self) -> int:
        """The newest step of which anything was deposited, merged or offered; -1 if none."""

    @abstractmethod
    def _holds(self, step: int) -> Holdings: ...

    @abstractmethod
    def _deposit(self, step: int, rows: Int64, states: Float32) -> None: ...

    @abstractmethod
    def _withdraw(self, step: int, rows: Int64, out: Float32) -> None: ...

    @abstractmethod
    def _prefetch(self, step: int, rows: Int64) -> None: ...

    @abstractmethod
    def _merge_moments(self, step: int, rows: Int64, partials: Float64) -> None: ...

    @abstractmethod
    def _moments(self, step: int) -> Float64: ...

    @abstractmethod
    def _offer(self, offer: Offer) -> None: ...

    @abstractmethod
    def _reservoir(self, step: int) -> Reservoir: ...

    @abstractmethod
    def _reservoir_states(self, steps: Int64, rows: Int64, out: Float32) -> None: ...

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

    def _check_states(self, action: str, step: int, count: int, states: Float32) -> None:
        expected = (count, self.layout.elements)
        if states.shape != expected or states.dtype != np.float32:
            raise StorageError(
                f"states {action} at step {step} are {states.dtype} of shape {states.shape}; give float32 of {expected}"
            )

    def _check_reservoir(self) -> None:
        if not self.layout.capacity:
            raise StorageError("this bank keeps no reservoir; give its number of entries in BankLayout(capacity=...)")

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


def too_late(what: str, step: int, late: Int64, expected: int, timeout_s: float) -> BankTimeoutError:
    """The error of a read that waited in vain for the `late` ones of `expected` rows."""
    return BankTimeoutError(
        f"waited {timeout_s:g} s for the {what} of step {step}, row {late[0]} ({late.size} of {expected} "
        "rows did not arrive); see whether the worker of that row is alive"
    )


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
