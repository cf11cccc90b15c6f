"""The state bank in one process: no Ray, no traffic. For a single trainer, and as the plain meaning of the contract."""

from pathlib import Path

import numpy as np

from storage.bank.contract import Holdings, StateBank
from storage.bank.layout import BankLayout, Float32, Float64, Int64
from storage.bank.reservoir import NO_LIMIT, Offer, Reservoir
from storage.bank.reservoir_store import ReservoirStore
from storage.bank.row_store import RowStore
from storage.bank.slots import Slots
from storage.bank.wire import decode
from storage.errors import StorageError


class InProcessBank(StateBank):
    """A bank in this process's memory. Any number of its threads may use it."""

    def __init__(self, layout: BankLayout, timeout_s: float = 60.0) -> None:
        """Args: layout: the bank's shape. timeout_s: seconds a read waits for rows another thread deposits."""
        super().__init__(layout, timeout_s)
        self._slots = Slots(0, layout.rows, layout)
        self._store = RowStore(self._slots, layout.row_bytes, len(layout.groups))
        self._drawn = ReservoirStore(0, layout.rows, layout)
        self._closed = False

    def flush(self) -> None:
        """Nothing is ever pending here."""
        self._refuse_closed()

    def snapshot(self, folder: Path, step: int | None = None) -> None:
        """See `StateBank.snapshot`."""
        # Here and not above, for loops on a GPU machine that has no pyarrow (benchmarks/gpu_check.py).
        from storage.bank.snapshot import Part, remove_snapshot, write_shard

        self._refuse_closed()
        remove_snapshot(folder)
        newest = self._newest() if step is None else step
        part = Part(0, 1, self._holds(newest), NO_LIMIT)
        write_shard(self._store, self._drawn, self.layout, folder, newest, part, self.timeout_s)

    def restore(self, folder: Path) -> None:
        """See `StateBank.restore`."""
        from storage.bank.snapshot import load_reservoir, load_rows, read_header

        self._refuse_closed()
        header = read_header(folder, self.layout)
        load_rows(self._store, folder, self.layout, header)
        load_reservoir(self._drawn, folder, self.layout, header)
        self._limit = 0, NO_LIMIT
        self._store.counters = header["counters"]

    def clear(self) -> None:
        """See `StateBank.clear`."""
        self._refuse_closed()
        self._store.clear()
        self._drawn.clear()
        self._limit = 0, NO_LIMIT

    def counters(self) -> dict[str, int]:
        """See `StateBank.counters`."""
        return dict(self._store.counters)

    def close(self) -> None:
        """Drop all states."""
        self._closed = True
        self._store.clear()
        self._drawn.clear()

    def _newest(self) -> int:
        return max(self._store.latest, self._drawn.latest)

    def _holds(self, step: int) -> Holdings:
        return Holdings(*self._store.holds(step), self._drawn.holds(step))

    def _deposit(self, step: int, rows: Int64, states: Float32) -> None:
        self._refuse_closed()
        zeroed = self._slots.write(step, rows, states, np.arange(rows.size))
        self._store.put_states(step, rows, zeroed)

    def _withdraw(self, step: int, rows: Int64, out: Float32) -> None:
        self._refuse_closed()
        self._store.await_states(step - 1, rows, self.timeout_s)
        self._slots.read(step - 1, rows, np.arange(rows.size), out)

    def _prefetch(self, step: int, rows: Int64) -> None:
        self._refuse_closed()

    def _merge_moments(self, step: int, rows: Int64, partials: Float64) -> None:
        self._refuse_closed()
        self._store.put_moments(step, rows, partials)

    def _moments(self, step: int) -> Float64:
        self._refuse_closed()
        return self._store.moments(step, self.timeout_s)

    def _offer(self, offer: Offer) -> None:
        self._refuse_closed()
        self._drawn.offer(offer)

    def _reservoir(self, step: int) -> Reservoir:
        self._refuse_closed()
        return self._drawn.read(step, self.timeout_s)

    def _reservoir_states(self, steps: Int64, rows: Int64, out: Float32) -> None:
        self._refuse_closed()
        decode(out, self._drawn.states(steps, rows))

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StorageError("this state bank is closed; open a new one")
