"""How states are kept: finite, in float32 or bf16 (the upper 16 bits, as uint16); and how rows are copied.

Shape legend: n rows of a block, m rows of one call, E elements of one packed row.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from storage.bank.layout import BankLayout, Float32, Int64, Wire

_INFINITY = np.float32(np.inf)
_BF16_OVERFLOW = np.uint32(0x7F7F8000).view(np.float32)
"""The smallest fp32 magnitude that rounds to infinity in bf16: half a step above the largest finite bf16."""
_CHUNK = 1 << 15
"""Elements that are converted at a time: what they need stays in the cache."""
_READ_PIECE = 1 << 20
"""Elements that are read at a time: some C libraries copy larger pieces in a way that is slow to read 4 KB pages."""
_BF16_EXPONENT = np.uint16(0x7F80)
_BF16_NAN = np.uint16(0x7FC0)


def zero_nonfinite(states: Float32, wire_dtype: str = "fp32") -> tuple[Float32, Int64]:
    """Zero the rows that hold a NaN or an infinity, or (bf16) a value that would round to one.

    Args:
        states: (n, E) float32; left as it is.
        wire_dtype: the precision in which the values must be finite.

    Returns:
        The same array if all rows are good, else a copy with bad rows zeroed; and the positions of the bad rows.
    """
    bad_rows = _bad_float32(states, _INFINITY if wire_dtype == "fp32" else _BF16_OVERFLOW)
    if bad_rows.size:
        states = states.copy()
        states[bad_rows] = 0.0
    return states, bad_rows


def _bad_float32(states: Float32, limit: np.float32 = _INFINITY) -> Int64:
    # A finite sum of squares proves a row good in one pass at the speed of memory; only the others get a closer look.
    with np.errstate(over="ignore", invalid="ignore"):
        doubtful = np.flatnonzero(~np.isfinite(np.vecdot(states, states)))
    return np.array([row for row in doubtful if not (np.abs(states[row]) < limit).all()], dtype=np.int64)


def _bad_bf16(block: Wire) -> Int64:
    scratch = np.empty(_CHUNK, dtype=np.uint16)

    def is_bad(row: Wire) -> bool:
        parts = (row[start : start + _CHUNK] for start in range(0, row.size, _CHUNK))
        return any(
            np.bitwise_and(part, _BF16_EXPONENT, out=scratch[: part.size]).max() == _BF16_EXPONENT for part in parts
        )

    return np.array([index for index, row in enumerate(block) if is_bad(row)], dtype=np.int64)


def nonfinite_rows(block: Wire, rows: Int64) -> Int64:
    """The positions in `rows` of those rows of `block` (n, E), float32 or bf16, that hold a NaN or an infinity."""
    bad: list[int] = []
    for first, start, count in runs(rows, rows):
        part = block[first : first + count]
        found = _bad_float32(part) if part.dtype == np.float32 else _bad_bf16(part)
        bad += (found + start).tolist()
    return np.array(bad, dtype=np.int64)


def encode(out: Wire, states: Float32) -> None:
    """Write states as they are kept: float32 unchanged, or bf16 bit patterns rounded to nearest, ties to even.

    Args:
        out: (m, E) float32 or uint16, C-contiguous. NaN stays NaN; what rounds to infinity becomes infinity.
        states: (m, E) float32, C-contiguous.
    """
    if out.dtype == np.float32:
        np.copyto(out, states)
        return
    values, target = states.reshape(-1), out.reshape(-1)
    scratch = np.empty(min(_CHUNK, values.size), dtype=np.uint32)
    for start in range(0, values.size, _CHUNK):
        part = values[start : start + _CHUNK]
        bits, rounded = part.view(np.uint32), scratch[: part.size]
        np.right_shift(bits, 16, out=rounded)
        rounded &= 1
        rounded += 0x7FFF
        rounded += bits
        rounded >>= 16
        target[start : start + _CHUNK] = rounded
        nan = np.isnan(part)
        if nan.any():
            target[start : start + _CHUNK][nan] = _BF16_NAN


def encoded(states: Float32, layout: BankLayout) -> Wire:
    """States (m, E) as they are kept: the same array for float32, else a new one."""
    if layout.wire_dtype == "fp32":
        return states
    out = np.empty(states.shape, dtype=layout.wire_type)
    encode(out, states)
    return out


def decode(out: Float32, block: Wire) -> None:
    """Write kept states (m, E) as float32; both C-contiguous."""
    kept, target = block.reshape(-1), out.reshape(-1)
    for start in range(0, kept.size, _READ_PIECE):
        piece = slice(start, start + _READ_PIECE)
        if kept.dtype == np.float32:
            np.copyto(target[piece], kept[piece])
        else:
            np.left_shift(kept[piece], 16, out=target[piece].view(np.uint32), dtype=np.uint32)


def copy_rows(out: Any, place: Int64, block: Any, take: Int64, convert: Callable[[Any, Any], None]) -> None:
    """out[place[i]] = block[take[i]], with as few calls of `convert(out, block)` as there are ranges in both."""
    for to, start, count in runs(place, take):
        source = int(take[start])
        convert(out[to : to + count], block[source : source + count])


def as_range(indices: Int64) -> range | None:
    """The range of ascending neighbouring `indices`, or None if they are none."""
    if not indices.size:
        return range(0)
    first, last = int(indices[0]), int(indices[-1])
    if last - first != indices.size - 1 or (np.diff(indices) != 1).any():
        return None
    return range(first, last + 1)


def runs(place: Int64, take: Int64) -> Iterator[tuple[int, int, int]]:
    """(place[start], start, count) of the longest stretches in which both go up by one."""
    cuts = np.flatnonzero((np.diff(place) != 1) | (np.diff(take) != 1)) + 1
    starts = [0, *cuts.tolist()] if place.size else []
    for start, stop in zip(starts, [*starts[1:], place.size], strict=False):
        yield int(place[start]), start, stop - start
