"""The reservoir entries of one shard's rows, with waiting reads. Knows nothing of Ray or files.

What was settled before the newest step and what that step offers are kept apart, so that a slow worker still reads the
reservoir as it was before the newest step began. Memory: at most twice the capacity in states.
Shape legend: n local rows (hi - lo), m entries, E elements of a packed row.
"""

import threading
import time

import numpy as np
import numpy.typing as npt

from storage.bank.contract import too_late
from storage.bank.layout import BankLayout, Int64, Wire
from storage.bank.reservoir import NO_LIMIT, Entries, Offer, Reservoir
from storage.errors import StorageError


class ReservoirStore:
    """Entries of rows lo .. hi - 1. Thread safe."""

    def __init__(self, lo: int, hi: int, layout: BankLayout) -> None:
        """Args: lo, hi: the range of global rows. layout: of the whole bank."""
        self.lo, self.hi, self._layout = lo, hi, layout
        self.lock = threading.Condition(threading.RLock())
        self._step = 0
        self._seed: int | None = None
        self._settled, self._newest = Entries.none(), Entries.none()
        self._reported = {0: self._nobody()}

    @property
    def latest(self) -> int:
        """The newest step of which a row was reported, -1 if none."""
        with self.lock:
            return self._step if self._reported[self._step].any() else self._step - 1

    @property
    def seed(self) -> int | None:
        """The seed of the keys, None before the first offer."""
        return self._seed

    def offer(self, offer: Offer) -> None:
        """Count the rows as reported and keep those that can still be drawn."""
        with self.lock:
            self._refuse(offer)
            if offer.step > self._step:
                self._begin(offer.step)
            self._seed = offer.seed
            self._settled = self._settled.take(self._settled.keys <= np.uint64(offer.limit))
            given = Entries.of_block(offer.keys, np.full(len(offer.keys), offer.step), offer.rows, offer.states)
            given = given.take(given.keys <= np.uint64(self._local_limit()))
            if len(given.keys):
                self._add(given, settled=offer.step < self._step)
            self._reported[offer.step][offer.reported - self.lo] = True
            self.lock.notify_all()

    def read(self, step: int, timeout_s: float) -> Reservoir:
        """The entries of steps < `step`, in order; waits until every row of step - 1 was reported."""
        with self.lock:
            entries = self._as_of(step, timeout_s)
            return Reservoir(entries.keys, entries.steps, entries.rows)

    def states(self, steps: Int64, rows: Int64) -> Wire:
        """The states (m, E) of entries that `read` named, in wire precision."""
        with self.lock:
            found: dict[tuple[int, int], Wire] = {}
            for part in (self._settled, self._newest):
                found |= zip(zip(part.steps.tolist(), part.rows.tolist(), strict=True), part.states, strict=True)
            wanted = np.empty((len(rows), self._layout.elements), dtype=self._layout.wire_type)
            for position, entry in enumerate(zip(steps.tolist(), rows.tolist(), strict=True)):
                if entry not in found:
                    raise StorageError(
                        f"row {entry[1]} of step {entry[0]} is not in the reservoir; "
                        "ask for entries that reservoir() named for the current step"
                    )
                wanted[position] = found[entry]
            return wanted

    def entries(self, step: int, limit: int, timeout_s: float) -> Entries:
        """The entries of steps < `step` with keys up to `limit`, with their states; waits like `read`."""
        with self.lock:
            entries = self._as_of(step, timeout_s)
            return entries.take(entries.keys <= np.uint64(limit))

    def holds(self, step: int) -> bool:
        """Whether the reservoir after `step` can be asked for: offers have begun, so they are to be complete."""
        return step >= 0 and self.latest >= 0

    def restore(self, step: int, seed: int | None, parts: list[Entries]) -> None:
        """Replace everything by the entries of steps < `step`, all rows of which count as reported."""
        with self.lock:
            self.clear()
            self._begin(step)
            self._reported[step - 1].fill(True)
            self._seed = seed
            self._settled = Entries.none()
            for entries in parts:
                self._settled = self._settled.merge(entries, self._layout.capacity)
            self.lock.notify_all()

    def clear(self) -> None:
        """Forget everything."""
        with self.lock:
            self._step, self._seed = 0, None
            self._settled, self._newest = Entries.none(), Entries.none()
            self._reported = {0: self._nobody()}

    def _nobody(self) -> npt.NDArray[np.bool_]:
        return np.zeros(self.hi - self.lo, dtype=bool)

    def _refuse(self, offer: Offer) -> None:
        if offer.step < self._step - 1:
            raise StorageError(
                f"row {offer.reported[0]} of step {offer.step} can no longer be offered; "
                f"the reservoir takes steps {self._step - 1} and later"
            )
        if self._seed not in (None, offer.seed):
            raise StorageError(
                f"step {offer.step} was offered with seed {offer.seed}, but this reservoir is drawn with seed "
                f"{self._seed}; use one seed for a bank"
            )

    def _begin(self, step: int) -> None:
        self._settled = self._settled.merge(self._newest, self._layout.capacity)
        self._newest = Entries.none()
        self._reported = {late: self._reported.get(late, self._nobody()) for late in (step - 1, step)}
        self._step = step

    def _local_limit(self) -> int:
        full = len(self._settled.keys) == self._layout.capacity
        return int(self._settled.keys[-1]) if full else NO_LIMIT

    def _add(self, given: Entries, settled: bool) -> None:
        if settled:
            self._settled = self._settled.merge(given, self._layout.capacity).owned()
        else:
            self._newest = self._newest.merge(given, self._layout.capacity).owned()

    def _as_of(self, step: int, timeout_s: float) -> Entries:
        deadline = time.monotonic() + timeout_s
        while True:
            if step < self._step:
                raise StorageError(
                    f"the reservoir as of step {step} can no longer be read; "
                    f"offers of step {self._step} have arrived, read it before"
                )
            here = self._reported.get(step - 1, self._nobody())
            if here.all():
                break
            left = deadline - time.monotonic()
            if left <= 0:
                raise too_late("offer", step - 1, np.arange(self.lo, self.hi)[~here], here.size, timeout_s)
            self.lock.wait(left)
        return self._settled if step == self._step else self._settled.merge(self._newest, self._layout.capacity)
