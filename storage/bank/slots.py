"""Where the states of a shard's rows lie: two generations, every row at its fixed place.

Step s lies in slot s % 2, so the step before the newest is always kept and the one before that is written over. Writers
and readers of one machine work on this memory directly; who has arrived is the shard's business (`row_store`). A stamp
tells which step a slot holds: a reader looks at it again after copying, so it never takes newer rows for older ones.
Shape legend: n local rows (hi - lo), m rows of one call, E elements of a row.
"""

from typing import Any

import numpy as np

from storage.bank.layout import BankLayout, Bytes, Float32, Int64, Wire
from storage.bank.segment import HEAD_BYTES
from storage.bank.wire import copy_rows, decode, encode, nonfinite_rows, zero_nonfinite
from storage.errors import StorageError

_STAMPS_AT = 64
"""Bytes from the start of the memory; two int64."""
_EMPTY = -1


def slot_bytes(lo: int, hi: int, layout: BankLayout) -> int:
    """Bytes that the slots of rows lo .. hi - 1 need."""
    return HEAD_BYTES + 2 * (hi - lo) * layout.row_bytes


class Slots:
    """Rows lo .. hi - 1 in the bank's precision, in this process's memory or in memory shared with others."""

    def __init__(self, lo: int, hi: int, layout: BankLayout, memory: Bytes | None = None) -> None:
        """Args: lo, hi: the range of global rows. layout: of the bank. memory: `slot_bytes` of it; default: own."""
        self.lo, self.hi, self._layout = lo, hi, layout
        self._written: dict[int, set[int]] = {}
        if memory is None:
            memory = np.zeros(slot_bytes(lo, hi, layout), dtype=np.uint8)
        self._stamps = memory[_STAMPS_AT : _STAMPS_AT + 16].view(np.int64)
        shape = (2, hi - lo, layout.elements)
        self._states_2nE: Wire = memory[HEAD_BYTES:].view(layout.wire_type).reshape(shape)

    def clear(self) -> None:
        """Hold no step. The owner calls it first of all."""
        self._stamps.fill(_EMPTY)
        self._written.clear()

    def write(self, step: int, rows: Int64, states: Float32, take: Int64) -> Int64:
        """Write states[take] (m, E), float32, of `rows` at `step`, in the bank's precision.

        States that are not finite are written as they are: nobody reads a row before its shard has looked at it
        (`zero_bad`) and called it there. Only what overwrites a row that may be there is looked at here.

        Returns:
            The rows that were zeroed here.
        """
        bad = rows[:0]
        if self._was_written(step, rows):
            states, positions = zero_nonfinite(states[take], self._layout.wire_dtype)
            bad, take = rows[positions], np.arange(rows.size)
        copy_rows(self._open(step, rows), rows - self.lo, states, take, encode)
        return bad

    def write_block(self, step: int, rows: Int64, block: Wire) -> Int64:
        """Write states (m, E) that have the bank's precision already; rows that are not finite are written as zeros.

        They are looked at before they are written: a repeated row may be read meanwhile.

        Returns:
            The rows that were zeroed.
        """
        positions = nonfinite_rows(block, np.arange(rows.size))
        if positions.size:
            block = block.copy()
            block[positions] = 0
        copy_rows(self._open(step, rows), rows - self.lo, block, np.arange(rows.size), np.copyto)
        return rows[positions]

    def zero_bad(self, step: int, rows: Int64) -> Int64:
        """Zero the states among `rows` that are not finite; returns which. None when a newer step has begun there."""
        if self._stamps[step % 2] != step:
            return rows[:0]
        block = self.block(step, rows)
        bad = rows[nonfinite_rows(block, rows - self.lo)]
        block[bad - self.lo] = 0
        return bad

    def read(self, step: int, rows: Int64, place: Int64, out: Float32) -> None:
        """out[place] = the states of `rows` at `step`, as float32."""
        self._copy_out(step, rows, place, out, decode)

    def read_block(self, step: int, rows: Int64) -> Wire:
        """The states (m, E) of `rows` at `step` in the bank's precision."""
        block = np.empty((rows.size, self._states_2nE.shape[2]), dtype=self._states_2nE.dtype)
        self._copy_out(step, rows, np.arange(rows.size), block, np.copyto)
        return block

    def block(self, step: int, rows: Int64) -> Wire:
        """All rows (n, E) of `step`, in place. `rows` are those that an error is to name."""
        if self._stamps[step % 2] != step:
            raise no_longer_kept("read", step, rows, int(self._stamps.max()))
        return self._states_2nE[step % 2]

    def _was_written(self, step: int, rows: Int64) -> bool:
        """Whether this object wrote any of `rows` at `step` before."""
        for old in [kept for kept in self._written if kept < step - 1]:
            del self._written[old]
        written = self._written.setdefault(step, set())
        repeated = not written.isdisjoint(rows.tolist())
        written.update(rows.tolist())
        return repeated

    def _copy_out(self, step: int, rows: Int64, place: Int64, out: Any, convert: Any) -> None:
        copy_rows(out, place, self.block(step, rows), rows - self.lo, convert)
        self.block(step, rows)  # nobody has begun a newer step in this slot meanwhile

    def _open(self, step: int, rows: Int64) -> Wire:
        newest = int(self._stamps.max())
        if step < newest - 1:
            raise no_longer_kept("written", step, rows, newest)
        self._stamps[step % 2] = step
        return self._states_2nE[step % 2]


def no_longer_kept(action: str, step: int, rows: Int64, newest: int) -> StorageError:
    """The error of a call for a step older than the two that are kept."""
    return StorageError(
        f"row {rows[0]} of step {step} can no longer be {action}; the bank keeps steps {newest - 1} and {newest} only"
    )
