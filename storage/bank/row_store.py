"""Which rows of one shard have arrived, in two generations, with waiting reads. Knows nothing of Ray or files.

The states lie in the shard's slots (`slots`), where writers put them; this is who says that a row is there.
Shape legend: n local rows (hi - lo), m rows of one call, E elements of a row, K moment groups.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage.bank.contract import too_late
from storage.bank.layout import Float64, Int64, Wire
from storage.bank.slots import Slots, no_longer_kept

Mask = npt.NDArray[np.bool_]


@dataclass
class _Generation:
    has_state: Mask
    has_moments: Mask
    partials: Float64
    """(n, K, 3)"""


class RowStore:
    """Rows lo .. hi - 1. Thread safe."""

    def __init__(self, slots: Slots, row_bytes: int, groups: int) -> None:
        """Args: slots: where the states lie. row_bytes: of one state. groups: K, the number of moment groups."""
        self.slots, self.lo, self.hi = slots, slots.lo, slots.hi
        self._row_bytes, self._groups = row_bytes, groups
        self.lock = threading.Condition(threading.RLock())
        self.latest = -1
        self._generations: dict[int, _Generation] = {}
        self.counters = {"deposits": 0, "zeroed_rows": 0, "bytes": 0}
        slots.clear()

    def put_states(self, step: int, rows: Int64, zeroed: Int64, block: Wire | None = None) -> None:
        """Take the states of `rows` at `step` as arrived; those that are not finite become zeros and are counted.

        Args:
            zeroed: those of `rows` that were not finite and that the writer has zeroed already.
            block: (m, E) in the bank's precision; None if the writer has put them into the slots.
        """
        bad = self.slots.zero_bad(step, rows) if block is None else self.slots.write_block(step, rows, block)
        zeroed = np.union1d(zeroed, bad)
        with self.lock:
            arrived = self._open(step, rows).has_state
            fresh = int((~arrived[rows - self.lo]).sum())
            self.counters["deposits"] += fresh
            self.counters["bytes"] += fresh * self._row_bytes
            self.counters["zeroed_rows"] += int((~arrived[zeroed - self.lo]).sum())
            arrived[rows - self.lo] = True
            self.lock.notify_all()

    def put_moments(self, step: int, rows: Int64, partials: Float64) -> None:
        """Keep the partial sums (m, K, 3) of `rows` at `step`."""
        with self.lock:
            generation = self._open(step, rows)
            generation.partials[rows - self.lo] = partials
            generation.has_moments[rows - self.lo] = True
            self.lock.notify_all()

    def await_states(self, step: int, rows: Int64, timeout_s: float) -> None:
        """Wait until the states that `rows` had at the end of `step` are in the slots."""
        with self.lock:
            local = rows - self.lo
            self._wait(step, rows, timeout_s, "state", lambda kept: kept.has_state[local])

    def states(self, step: int, timeout_s: float) -> Wire:
        """All states (n, E) of `step`, in place; waits for late ones."""
        rows = np.arange(self.lo, self.hi)
        self.await_states(step, rows, timeout_s)
        return self.slots.block(step, rows)

    def moments(self, step: int, timeout_s: float) -> Float64:
        """The partial sums (n, K, 3) of all rows at `step`; waits for late ones."""
        with self.lock:
            rows = np.arange(self.lo, self.hi)
            return self._wait(step, rows, timeout_s, "moments", lambda kept: kept.has_moments).partials.copy()

    def holds(self, step: int) -> tuple[bool, bool]:
        """Whether any states, and any moments, of `step` have arrived."""
        with self.lock:
            kept = self._generations.get(step)
            return (False, False) if kept is None else (bool(kept.has_state.any()), bool(kept.has_moments.any()))

    def clear(self) -> None:
        """Forget everything."""
        with self.lock:
            self._generations.clear()
            self.slots.clear()
            self.latest = -1
            self.counters = dict.fromkeys(self.counters, 0)

    def _open(self, step: int, rows: Int64) -> _Generation:
        self._refuse_older(step, rows, "written")
        for old in [kept for kept in self._generations if kept < step - 1]:
            del self._generations[old]
        if step not in self._generations:
            n = self.hi - self.lo
            nobody = np.zeros(n, dtype=bool)
            self._generations[step] = _Generation(nobody, nobody.copy(), np.zeros((n, self._groups, 3)))
        self.latest = max(self.latest, step)
        return self._generations[step]

    def _refuse_older(self, step: int, rows: Int64, action: str) -> None:
        if step < self.latest - 1:
            raise no_longer_kept(action, step, rows, self.latest)

    def _wait(
        self, step: int, rows: Int64, timeout_s: float, what: str, arrived: Callable[[_Generation], Mask]
    ) -> _Generation:
        deadline = time.monotonic() + timeout_s
        while True:
            self._refuse_older(step, rows, "read")
            kept = self._generations.get(step)
            here = np.zeros(rows.size, dtype=bool) if kept is None else arrived(kept)
            if kept is not None and here.all():
                return kept
            left = deadline - time.monotonic()
            if left <= 0:
                raise too_late(what, step, rows[~here], rows.size, timeout_s)
            self.lock.wait(left)
