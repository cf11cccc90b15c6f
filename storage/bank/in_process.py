"""The state bank in one process: no Ray, no traffic. For a single trainer, and as the plain meaning of the contract."""

import threading
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storage.bank.contract import Holdings, StateBank
from storage.bank.layout import BankLayout, Float32, Float64, Int64, Wire, decode_into
from storage.bank.reservoir import NO_LIMIT, Offer, Reservoir
from storage.bank.reservoir_store import ReservoirStore
from storage.bank.row_store import RowStore
from storage.bank.snapshot import Part, load_reservoir, load_rows, read_header, remove_snapshot, write_shard
from storage.errors import StorageError


class InProcessBank(StateBank):
    """A bank in this process's memory. Any number of its threads may use it."""

    def __init__(self, layout: BankLayout, timeout_s: float = 60.0) -> None:
        """Args: layout: the bank's shape. timeout_s: seconds a read waits for rows another thread deposits."""
        super().__init__(layout, timeout_s)
        self._store = RowStore(0, layout.rows, len(layout.groups))
        self._drawn = ReservoirStore(0, layout.rows, layout)
        # Blocks of retired generations: writing to known pages is several times faster than to fresh ones.
        self._spare: dict[int, list[Wire]] = {}
        self._spare_lock = threading.Lock()
        self._closed = False

    def flush(self) -> None:
        """Nothing is ever pending here."""
        self._refuse_closed()

    def snapshot(self, folder: Path, step: int | None = None) -> None:
        """See `StateBank.snapshot`."""
        self._refuse_closed()
        remove_snapshot(folder)
        newest = self._newest() if step is None else step
        part = Part(0, 1, self._holds(newest), NO_LIMIT)
        write_shard(self._store, self._drawn, self.layout, folder, newest, part, self.timeout_s)

    def restore(self, folder: Path) -> None:
        """See `StateBank.restore`."""
        self._refuse_closed()
        header = read_header(folder, self.layout)
        load_rows(self._store, folder, self.layout, header)
        load_reservoir(self._drawn, folder, self.layout, header)
        self._limit = 0, NO_LIMIT
        self._store.counters = header["counters"]

    def clear(self) -> None:
        """See `StateBank.clear`."""
        self._refuse_closed()
        self._recycle(self._store.clear())
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
        self._spare.clear()

    def _newest(self) -> int:
        return max(self._store.latest, self._drawn.latest)

    def _holds(self, step: int) -> Holdings:
        return Holdings(*self._store.holds(step), self._drawn.holds(step))

    def _deposit(self, step: int, rows: Int64, block: Wire, zeroed: npt.NDArray[np.bool_]) -> None:
        self._refuse_closed()
        own = self._buffer(block)
        np.copyto(own, block)
        self._recycle(self._store.put_states(step, rows, own, zeroed))

    def _withdraw(self, step: int, rows: Int64, out: Float32) -> None:
        self._refuse_closed()
        with self._store.lock:  # held while copying: a deposit by another thread may recycle the block
            for piece in self._store.locate(step - 1, rows, self.timeout_s):
                decode_into(out, piece.place, piece.block, piece.take)

    def _prefetch(self, step: int, rows: Int64) -> None:
        self._refuse_closed()

    def _merge_moments(self, step: int, rows: Int64, partials: Float64) -> None:
        self._refuse_closed()
        self._recycle(self._store.put_moments(step, rows, partials))

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
        everything = np.arange(len(rows))
        decode_into(out, everything, self._drawn.states(steps, rows), everything)

    def _buffer(self, block: Wire) -> Wire:
        with self._spare_lock:
            spare = self._spare.get(len(block))
            return spare.pop() if spare else np.empty_like(block)

    def _recycle(self, blocks: list[Wire]) -> None:
        with self._spare_lock:
            if sum(rows * len(spare) for rows, spare in self._spare.items()) > self.layout.rows:
                self._spare.clear()  # blocks of sizes that no longer come would pile up
            for block in blocks:
                self._spare.setdefault(len(block), []).append(block)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StorageError("this state bank is closed; open a new one")
