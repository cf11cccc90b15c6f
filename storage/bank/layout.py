"""What one row of the bank holds, and which shard keeps it.

Shape legend: G rows of the global batch, S shards, n rows of one call, E elements of one packed row.
A row's state is one contiguous fp32 vector of E elements; it is kept and travels as fp32 or bf16 (`wire`).
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.errors import StorageError

Bytes = npt.NDArray[np.uint8]
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
