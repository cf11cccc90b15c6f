"""One hash over what a bank holds, so that two trials can be compared without keeping their states.

Legend: G rows of the global batch, E elements of a packed row, K moment groups, m entries of the reservoir.
"""

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from storage.bank.contract import StateBank

_CHUNK_BYTES = 64 << 20
"""States are hashed in pieces of about this size, read into one buffer."""


def content_digest(bank: "StateBank") -> str:
    """See `StateBank.digest`. States count as the float32 values that a reader gets."""
    step = bank._newest()
    holds, digest = bank._holds(step), hashlib.sha256(f"step {step}".encode())
    count = max(1, _CHUNK_BYTES // (4 * bank.layout.elements))
    if holds.states:
        buffer = np.empty((min(count, bank.layout.rows), bank.layout.elements), dtype=np.float32)
        for rows in np.array_split(np.arange(bank.layout.rows), -(-bank.layout.rows // count)):
            digest.update(_bytes(bank.withdraw(step + 1, rows, buffer[: rows.size])))
    if holds.moments:
        digest.update(_bytes(bank._moments(step)))
    if holds.reservoir:
        kept = bank.reservoir(step + 1)
        for ids in (kept.keys, kept.steps, kept.rows):
            digest.update(_bytes(ids))
        for start in range(0, len(kept), count):
            chosen = slice(start, start + count)
            digest.update(_bytes(bank.reservoir_states(kept.steps[chosen], kept.rows[chosen])))
    return digest.hexdigest()


def _bytes(array: npt.NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
