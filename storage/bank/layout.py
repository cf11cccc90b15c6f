"""What one row of the bank holds, which shard keeps it, and how states travel.

Shape legend: G rows of the global batch, S shards, n rows of one call, E elements of one packed row.
A row's state is one contiguous fp32 vector of E elements; on the wire it is fp32 or bf16
(the upper 16 bits, as uint16).
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.errors import StorageError

_BF16_OVERFLOW = np.uint32(0x7F7F8000).view(np.float32)
"""The smallest fp32 magnitude that rounds to infinity in bf16: half a step above the largest finite bf16."""
_CHUNK = 1 << 15
"""Elements that are converted at a time."""

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Wire = npt.NDArray[Any]
"""A block of rows as they travel: float32, or uint16 bit patterns of bf16."""


@dataclass(frozen=True, kw_only=True)
class BankLayout:
    """The shape of a bank. Every worker and every shard of a trial holds the same layout."""

    rows: int
    """G, the number of sequence slots of one optimiser step, over all workers."""
    elements: int
    """E, the number of fp32 elements of one packed row: all carried parts of all layers."""
    wire_dtype: str = "fp32"
    """`fp32` or `bf16`: precision on the wire and in the bank. Withdrawn states are float32 in both cases."""
    groups: tuple[tuple[str, int, int], ...] = ()
    """(name, start, stop): ranges of the packed row whose moments are kept, for example one per layer. Empty: none."""
    capacity: int = 0
    """k, the number of entries of the reservoir, out of all rows of all steps. 0: no reservoir."""

    def __post_init__(self) -> None:
        if self.rows < 1 or self.elements < 1:
            raise StorageError(
                f"the bank's layout has {self.rows} rows of {self.elements} elements; give at least 1 of each"
            )
        if self.wire_dtype not in ("fp32", "bf16"):
            raise StorageError(f"the bank's wire_dtype is {self.wire_dtype!r}; write 'fp32' or 'bf16'")
        if self.capacity < 0:
            raise StorageError(f"the bank's capacity is {self.capacity}; give 0 for no reservoir, or its entries")
        for name, start, stop in self.groups:
            if not 0 <= start < stop <= self.elements:
                raise StorageError(
                    f"the bank's group {name!r} spans elements {start} to {stop}; "
                    f"give a non-empty range within 0 to {self.elements}"
                )
        if len({name for name, _, _ in self.groups}) < len(self.groups):
            raise StorageError("two of the bank's groups have one name; give every group its own name")

    @property
    def wire_type(self) -> np.dtype[Any]:
        """The numpy type of a block on the wire."""
        return np.dtype(np.float32 if self.wire_dtype == "fp32" else np.uint16)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row on the wire."""
        return self.elements * self.wire_type.itemsize

    def shard_of(self, rows: Int64, shards: int) -> Int64:
        """The shard of every row: row * S // G, contiguous blocks."""
        return rows * shards // self.rows

    def shard_range(self, shard: int, shards: int) -> tuple[int, int]:
        """First row and one past the last row of a shard."""
        if not 1 <= shards <= self.rows:
            raise StorageError(f"bank.shards is {shards} for {self.rows} rows; write a number from 1 to {self.rows}")
        return -(-shard * self.rows // shards), -(-(shard + 1) * self.rows // shards)

    def to_dict(self) -> dict[str, Any]:
        """The layout as plain JSON-able values."""
        return asdict(self) | {"groups": [list(group) for group in self.groups]}


def zero_nonfinite(states: Float32, wire_dtype: str = "fp32") -> tuple[Float32, Int64]:
    """Zero the rows that hold a NaN or an infinity, or (bf16) a value that would round to one.

    Args:
        states: (n, E) float32; left as it is.
        wire_dtype: the precision in which the values must be finite.

    Returns:
        The same array if all rows are good, else a copy with bad rows zeroed; and the positions of the bad rows.
    """
    limit = np.float32(np.inf) if wire_dtype == "fp32" else _BF16_OVERFLOW
    # A finite sum of squares proves a row good in one pass at the speed of memory; only the others get a closer look.
    with np.errstate(over="ignore", invalid="ignore"):
        doubtful = np.flatnonzero(~np.isfinite(np.vecdot(states, states)))
    bad_rows = np.array([row for row in doubtful if not (np.abs(states[row]) < limit).all()], dtype=np.int64)
    if bad_rows.size:
        states = states.copy()
        states[bad_rows] = 0.0
    return states, bad_rows


def encode(states: Float32, wire_dtype: str) -> Wire:
    """States as they travel: float32 unchanged, or bf16 bit patterns rounded to nearest, ties to even.

    Args:
        states: (n, E) float32, finite (see `zero_nonfinite`).
    """
    if wire_dtype == "fp32":
        return states
    bits, out = states.view(np.uint32).reshape(-1), np.empty(states.shape, dtype=np.uint16)
    scratch = np.empty(min(_CHUNK, bits.size), dtype=np.uint32)
    for start in range(0, bits.size, _CHUNK):  # in place and piece by piece, so that the work stays in the cache
        part = bits[start : start + _CHUNK]
        rounded = np.right_shift(part, 16, out=scratch[: part.size])
        rounded &= 1
        rounded += 0x7FFF
        rounded += part
        rounded >>= 16
        out.reshape(-1)[start : start + _CHUNK] = rounded
    return out


def decode_into(out: Float32, place: Int64, block: Wire, take: Int64) -> None:
    """Write out[place[i]] = block[take[i]] as float32, in one copy when both are ranges.

    Args:
        out: (n, E) float32, C-contiguous.
        block: (m, E) in wire precision.
    """
    to, source = as_slice(place), as_slice(take)
    if to is not None and source is not None:
        _decode(out[to], block[source])
        return
    for i, j in zip(place.tolist(), take.tolist(), strict=True):
        _decode(out[i], block[j])


def _decode(out: Float32, block: Wire) -> None:
    if block.dtype == np.float32:
        np.copyto(out, block)
    else:
        np.left_shift(block, 16, out=out.view(np.uint32), dtype=np.uint32)


def as_slice(indices: Int64) -> slice | None:
    """The slice that selects what ascending neighbouring `indices` select, or None if they are no range."""
    if not indices.size:
        return slice(0, 0)
    first, last = int(indices[0]), int(indices[-1])
    if last - first != indices.size - 1 or (np.diff(indices) != 1).any():
        return None
    return slice(first, last + 1)
