"""One shard of the bank: the body of a Ray actor that keeps a contiguous range of rows. Never imports torch.

Reads may wait for late rows, so reads and writes run in separate thread groups of the actor: no number of waiting
reads can hold up the deposit they wait for.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import ray

from storage.bank.contract import Holdings
from storage.bank.layout import BankLayout, Float64, Int64, Wire
from storage.bank.reservoir import Offer, Reservoir
from storage.bank.reservoir_store import ReservoirStore
from storage.bank.row_store import Piece, RowStore
from storage.bank.snapshot import Part, load_reservoir, load_rows, write_shard

THREADS = {"write": 1, "read": 32}
"""Concurrency groups of the actor; everything else runs in its default thread. One writes, so that the writes of a
client take effect in their order: a hurried client could otherwise have its own later steps retire an earlier one."""

Answer = tuple["ray.ObjectRef[Wire] | Wire", Int64, Int64]
"""Rows, take, place: answer[place] = rows[take]. Rows are an array, or a reference to a block in shared memory."""


class BankShard:
    """Rows of one shard. Blocks stay where Ray's object store put them: depositing copies nothing in the actor."""

    def __init__(self, layout: BankLayout, shard: int, shards: int) -> None:
        """Args: layout: of the whole bank. shard, shards: which part of how many this is."""
        self._layout, self._shard, self._shards = layout, shard, shards
        self._store = RowStore(*layout.shard_range(shard, shards), groups=len(layout.groups))
        self._drawn = ReservoirStore(*layout.shard_range(shard, shards), layout)

    def describe(self) -> tuple[BankLayout, int]:
        """The layout of the bank and its number of shards."""
        return self._layout, self._shards

    @ray.method(concurrency_group="write")
    def put_states(
        self, step: int, rows: Int64, block: Wire, zeroed: npt.NDArray[np.bool_], handle: "list[ray.ObjectRef[Wire]]"
    ) -> None:
        """Keep `block` (m, E); `handle` holds the reference it came by, if it lies in the object store."""
        self._store.put_states(step, rows, block, zeroed, handle[0] if handle else None)

    @ray.method(concurrency_group="write")
    def put_moments(self, step: int, rows: Int64, partials: Float64) -> None:
        """Keep partial sums (m, K, 3)."""
        # Arguments that lie in the object store arrive read-only; the store copies them into its own array.
        self._store.put_moments(step, rows, partials)

    @ray.method(concurrency_group="write")
    def offer(self, offer: Offer) -> None:
        """Count rows as reported to the reservoir and keep those that can still be drawn."""
        self._drawn.offer(offer)

    @ray.method(concurrency_group="read")
    def reservoir(self, step: int, timeout_s: float) -> Reservoir:
        """The entries of this shard's rows as of `step`."""
        return self._drawn.read(step, timeout_s)

    @ray.method(concurrency_group="read")
    def reservoir_states(self, steps: Int64, rows: Int64) -> Wire:
        """The states (m, E) of entries of this shard's rows."""
        return self._drawn.states(steps, rows)

    @ray.method(concurrency_group="read")
    def read(self, step: int, rows: Int64, timeout_s: float) -> list[Answer]:
        """The states `rows` had at the end of `step`, block by block, when all have arrived."""
        return [_answer(piece) for piece in self._store.locate(step, rows, timeout_s)]

    @ray.method(concurrency_group="read")
    def moments(self, step: int, timeout_s: float) -> Float64:
        """The partial sums (hi - lo, K, 3) of this shard."""
        return self._store.moments(step, timeout_s)

    def newest(self) -> int:
        """The newest step written, -1 if none."""
        return max(self._store.latest, self._drawn.latest)

    def holds(self, step: int) -> Holdings:
        """What this shard holds of `step`."""
        return Holdings(*self._store.holds(step), self._drawn.holds(step))

    def counters(self) -> dict[str, int]:
        """See `StateBank.counters`; of this shard."""
        return dict(self._store.counters)

    def snapshot(self, folder: str, step: int, part: Part, timeout_s: float) -> None:
        """Write this shard's files."""
        write_shard(self._store, self._drawn, self._layout, Path(folder), step, part, timeout_s)

    def restore(self, folder: str, header: dict[str, Any]) -> None:
        """Take this shard's rows from a snapshot. The first shard takes over the counters of the whole bank."""
        load_rows(self._store, Path(folder), self._layout, header)
        load_reservoir(self._drawn, Path(folder), self._layout, header)
        if self._shard == 0:
            self._store.counters = dict(header["counters"])

    def clear(self) -> None:
        """Forget everything."""
        self._store.clear()
        self._drawn.clear()


def _answer(piece: Piece) -> Answer:
    # A whole block goes out as its reference: the reader maps the shared memory, no byte moves on the same node.
    # Of a block read in part only those rows travel.
    if piece.handle is not None and piece.take.size >= len(piece.block):
        return piece.handle, piece.take, piece.place
    return piece.block[piece.take], np.arange(piece.take.size), piece.place
