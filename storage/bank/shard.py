"""One shard of the bank: the body of a Ray actor that keeps a contiguous range of rows. Never imports torch.

Processes of its own node write and read its rows in shared memory and only tell or ask it who has arrived; rows of
other nodes travel in the calls. Reads may wait for late rows, so reads and writes run in separate thread groups of the
actor: no number of waiting reads can hold up the deposit they wait for.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray

from storage.bank.contract import Holdings
from storage.bank.layout import BankLayout, Float64, Int64, Wire
from storage.bank.reservoir import Offer, Reservoir
from storage.bank.reservoir_store import ReservoirStore
from storage.bank.row_store import RowStore
from storage.bank.segment import Address, Segment, can_share
from storage.bank.slots import Slots, slot_bytes
from storage.bank.snapshot import Part, load_reservoir, load_rows, write_shard

THREADS = {"write": 1, "read": 32}
"""Concurrency groups of the actor; everything else runs in its default thread. One writes, so that the writes of a
client take effect in their order: a hurried client could otherwise have its own later steps retire an earlier one."""

Rows = tuple[int, int] | Int64
"""Row numbers as they travel: first and one past the last of a range, which Ray sends in half the time, or a list."""


class Description(NamedTuple):
    """What a shard tells a client that connects."""

    layout: BankLayout
    shards: int
    node: str
    """Ray's id of the shard's node."""
    address: Address | None
    """Where processes of that node find its rows; None where the system has no such memory."""


class BankShard:
    """Rows of one shard."""

    def __init__(self, layout: BankLayout, shard: int, shards: int) -> None:
        """Args: layout: of the whole bank. shard, shards: which part of how many this is."""
        self._layout, self._shard, self._shards = layout, shard, shards
        rows = layout.shard_range(shard, shards)
        self._segment = Segment(slot_bytes(*rows, layout), f"bank-shard-{shard}") if can_share() else None
        self._slots = Slots(*rows, layout, self._segment.bytes if self._segment else None)
        self._store = RowStore(self._slots, layout.row_bytes, groups=len(layout.groups))
        self._drawn = ReservoirStore(*rows, layout)

    def describe(self) -> Description:
        """The layout of the bank, its number of shards, and where this one lies."""
        node = ray.get_runtime_context().get_node_id()
        return Description(self._layout, self._shards, node, self._segment.address if self._segment else None)

    @ray.method(concurrency_group="write")
    def put_states(self, step: int, rows: Rows, zeroed: Rows, block: Wire | None) -> None:
        """Take rows as arrived; `block` (m, E) in the bank's precision, or None if they lie in the shared memory."""
        self._store.put_states(step, _listed(rows), _listed(zeroed), block)

    @ray.method(concurrency_group="write")
    def put_moments(self, step: int, rows: Rows, partials: Float64) -> None:
        """Keep partial sums (m, K, 3)."""
        # Arguments that lie in the object store arrive read-only; the store copies them into its own array.
        self._store.put_moments(step, _listed(rows), partials)

    @ray.method(concurrency_group="write")
    def offer(self, offer: Offer) -> None:
        """Count rows as reported to the reservoir and keep those that can still be drawn."""
        self._drawn.offer(offer)

    @ray.method(concurrency_group="read")
    def await_states(self, step: int, rows: Rows, timeout_s: float) -> None:
        """Answer when the states `rows` had at the end of `step` are in the shared memory."""
        self._store.await_states(step, _listed(rows), timeout_s)

    @ray.method(concurrency_group="read")
    def read_states(self, step: int, rows: Rows, timeout_s: float) -> Wire:
        """The states (m, E) `rows` had at the end of `step`, for a reader without access to the shared memory."""
        self._store.await_states(step, _listed(rows), timeout_s)
        return self._slots.read_block(step, _listed(rows))

    @ray.method(concurrency_group="read")
    def reservoir(self, step: int, timeout_s: float) -> Reservoir:
        """The entries of this shard's rows as of `step`."""
        return self._drawn.read(step, timeout_s)

    @ray.method(concurrency_group="read")
    def reservoir_states(self, steps: Int64, rows: Int64) -> Wire:
        """The states (m, E) of entries of this shard's rows."""
        return self._drawn.states(steps, rows)

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


def _listed(rows: Rows) -> Int64:
    return np.arange(*rows) if isinstance(rows, tuple) else rows
