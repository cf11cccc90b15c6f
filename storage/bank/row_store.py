"""The rows of one shard: two generations of immutable blocks, with waiting reads. Knows nothing of Ray or files.

A deposit is kept as the block it arrived in; an index says which block and position holds each row. Nothing is
copied on the way in, and a reader that asks for a whole block can be handed the block itself.
Shape legend: n local rows (hi - lo), m rows of one block, E elements of a row, K moment groups.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.bank.contract import too_late
from storage.bank.layout import Float64, Int64, Wire
from storage.errors import StorageError

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Piece:
    """Rows of one block that answer part of a read: answer[place[i]] = block[take[i]]."""

    block: Wire
    handle: Any
    """What the writer gave along with the block (a reference by which others can fetch it), or None."""
    take: Int64
    place: Int64


@dataclass
class _Generation:
    block_of: npt.NDArray[np.int32]
    """(n,) index into `blocks`, -1 where the row has not arrived."""
    position_of: Int64
    has_moments: Mask
    partials: Float64
    """(n, K, 3)"""
    blocks: list[tuple[Wire, Any] | None] = field(default_factory=list)


class RowStore:
    """Rows lo .. hi - 1. Thread safe; hold `lock` around `locate` and the copying if blocks are reused."""

    def __init__(self, lo: int, hi: int, groups: int) -> None:
        """Args: lo, hi: the range of global rows. groups: K, the number of moment groups."""
        self.lo, self.hi, self._groups = lo, hi, groups
        self.lock = threading.Condition(threading.RLock())
        self.latest = -1
        self._generations: dict[int, _Generation] = {}
        self.counters = {"deposits": 0, "zeroed_rows": 0, "bytes": 0}

    def put_states(self, step: int, rows: Int64, block: Wire, zeroed: Mask, handle: Any = None) -> list[Wire]:
        """Keep `block` (m, E) as the states of `rows` at `step`; returns the blocks that this made obsolete."""
        with self.lock:
            retired = self._open(step, rows)
            generation, local = self._generations[step], rows - self.lo
            fresh = generation.block_of[local] < 0
            generation.block_of[local] = len(generation.blocks)
            generation.position_of[local] = np.arange(rows.size)
            generation.blocks.append((block, handle))
            if not fresh.all():
                retired += _drop_overwritten(generation)
            self.counters["deposits"] += int(fresh.sum())
            self.counters["zeroed_rows"] += int((fresh & zeroed).sum())
            self.counters["bytes"] += int(fresh.sum()) * block.shape[1] * block.itemsize
            self.lock.notify_all()
            return retired

    def put_moments(self, step: int, rows: Int64, partials: Float64) -> list[Wire]:
        """Keep the partial sums (m, K, 3) of `rows` at `step`; returns the blocks that this made obsolete."""
        with self.lock:
            retired = self._open(step, rows)
            self._generations[step].partials[rows - self.lo] = partials
            self._generations[step].has_moments[rows - self.lo] = True
            self.lock.notify_all()
            return retired

    def locate(self, step: int, rows: Int64, timeout_s: float) -> list[Piece]:
        """Where the states that `rows` had at the end of `step` lie; waits for late ones."""
        with self.lock:
            local = rows - self.lo
            generation = self._wait(step, rows, timeout_s, "state", lambda kept: kept.block_of[local] >= 0)
            pieces = []
            for index in np.unique(generation.block_of[local]):
                entry = generation.blocks[index]
                assert entry is not None, "a block that rows point to is never dropped"
                place = np.flatnonzero(generation.block_of[local] == index)
                pieces.append(Piece(entry[0], entry[1], take=generation.position_of[local[place]], place=place))
            return pieces

    def moments(self, step: int, timeout_s: float) -> Float64:
        """The partial sums (n, K, 3) of all rows at `step`; waits for late ones."""
        with self.lock:
            rows = np.arange(self.lo, self.hi)
            return self._wait(step, rows, timeout_s, "moments", lambda kept: kept.has_moments).partials.copy()

    def holds(self, step: int) -> tuple[bool, bool]:
        """Whether any states, and any moments, of `step` have arrived."""
        with self.lock:
            kept = self._generations.get(step)
            return (False, False) if kept is None else (bool((kept.block_of >= 0).any()), bool(kept.has_moments.any()))

    def clear(self) -> list[Wire]:
        """Forget everything; returns the blocks that were held."""
        with self.lock:
            retired = [block for kept in self._generations.values() for block in _blocks(kept)]
            self._generations.clear()
            self.latest = -1
            self.counters = dict.fromkeys(self.counters, 0)
            return retired

    def _open(self, step: int, rows: Int64) -> list[Wire]:
        self._refuse_older(step, rows, "written")
        retired: list[Wire] = []
        for old in [kept for kept in self._generations if kept < step - 1]:
            retired += _blocks(self._generations.pop(old))
        if step not in self._generations:
            n = self.hi - self.lo
            index, position = np.full(n, -1, dtype=np.int32), np.zeros(n, dtype=np.int64)
            self._generations[step] = _Generation(
                index, position, np.zeros(n, dtype=bool), np.zeros((n, self._groups, 3))
            )
        self.latest = max(self.latest, step)
        return retired

    def _refuse_older(self, step: int, rows: Int64, action: str) -> None:
        if step < self.latest - 1:
            raise StorageError(
                f"row {rows[0]} of step {step} can no longer be {action}; "
                f"the bank keeps steps {self.latest - 1} and {self.latest} only"
            )

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


def _blocks(generation: _Generation) -> list[Wire]:
    return [entry[0] for entry in generation.blocks if entry is not None]


def _drop_overwritten(generation: _Generation) -> list[Wire]:
    live, dropped = set(np.unique(generation.block_of).tolist()), []
    for index, entry in enumerate(generation.blocks):
        if entry is not None and index not in live:
            dropped.append(entry[0])
            generation.blocks[index] = None
    return dropped
