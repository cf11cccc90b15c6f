"""Bottom-k sampling: an exactly uniform sample, without replacement, of all states that were ever offered.

Every entry (step, row) has a 64-bit key that depends on (seed, step, row) alone; the k entries with the smallest keys
are the sample. So it is the same for any number of workers and shards and any order of arrival, offering an entry
twice changes nothing, and samples of parts merge into the sample of the whole. (E. Cohen and H. Kaplan, "Summarizing
data using bottom-k sketches", PODC 2007.)
Shape legend: n rows of one call, m entries, k the capacity, E elements of a packed row.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from storage.bank.layout import Int64, Wire
from storage.errors import StorageError

UInt64 = npt.NDArray[np.uint64]

NO_LIMIT = 2**64 - 1
"""The largest key: a limit that keeps nothing out."""
_STREAM = 0x7265736572766F69
"""Keeps these keys apart from other hashes of the same numbers ("reservoi" in ASCII)."""
_NO_KEYS, _NO_IDS = np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64)


def reservoir_keys(seed: int, step: int, rows: Int64) -> UInt64:
    """The 64-bit keys (n,) of `rows` at `step`: splitmix64 over the words of (seed, step, row).

    The last mixing is a bijection, so two rows of one step never share a key. (S. Vigna, "splitmix64.c", 2015.)
    """
    if seed < 0:
        raise StorageError(f"the seed of the reservoir is {seed}; give a whole number of at least 0")
    words = [_STREAM, *(seed >> shift & NO_LIMIT for shift in range(0, max(1, seed.bit_length()), 64)), step]
    state = np.zeros(1, dtype=np.uint64)
    for word in words:
        state = _mix(state ^ np.uint64(word))
    return _mix(state ^ rows.astype(np.uint64))


def _mix(words: UInt64) -> UInt64:
    mixed = words + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@dataclass(frozen=True)
class Reservoir:
    """Which entries are in the reservoir, in the order of their keys; their states are asked for apart."""

    keys: UInt64
    """(m,) ascending; m is the capacity, or less while fewer rows were offered."""
    steps: Int64
    """(m,)"""
    rows: Int64
    """(m,)"""

    def __len__(self) -> int:
        return len(self.keys)

    def smallest(self, capacity: int) -> "Reservoir":
        """The entries with the smallest keys, in order, each once; ties are broken by (step, row)."""
        order = np.lexsort((self.rows, self.steps, self.keys))
        keys, steps, rows = self.keys[order], self.steps[order], self.rows[order]
        fresh = np.ones(len(keys), dtype=bool)
        fresh[1:] = (np.diff(steps) != 0) | (np.diff(rows) != 0)
        return Reservoir(keys[fresh][:capacity], steps[fresh][:capacity], rows[fresh][:capacity])


def merge_reservoirs(parts: list[Reservoir], capacity: int) -> Reservoir:
    """The reservoir of everything that was offered to any of `parts`."""
    keys, steps, rows = _NO_KEYS, _NO_IDS, _NO_IDS
    for part in parts:
        keys, steps = np.concatenate([keys, part.keys]), np.concatenate([steps, part.steps])
        rows = np.concatenate([rows, part.rows])
    return Reservoir(keys, steps, rows).smallest(capacity)


class Offer(NamedTuple):
    """What travels for one call of `StateBank.offer`: all rows are reported, some come with their state."""

    step: int
    seed: int
    reported: Int64
    """(n,) rows of this call."""
    keys: UInt64
    """(m,) of the rows that may enter the reservoir and are finite."""
    rows: Int64
    """(m,)"""
    states: Wire
    """(m, E)"""
    limit: int
    """No key above this one will ever be drawn: the capacity-th smallest key as the writer knows it."""


class Entries(NamedTuple):
    """Entries with their states; always sorted by (key, step, row), each entry once."""

    keys: UInt64
    steps: Int64
    rows: Int64
    states: npt.NDArray[np.object_]
    """(m,) of arrays (E,) in wire precision, so that entries move without their bytes."""

    @classmethod
    def none(cls) -> Self:
        """No entries."""
        return cls(_NO_KEYS, _NO_IDS, _NO_IDS, np.zeros(0, dtype=np.object_))

    @classmethod
    def of_block(cls, keys: UInt64, steps: Int64, rows: Int64, block: Wire) -> Self:
        """Entries whose states are views of the rows of `block` (m, E); in any order."""
        states = np.empty(len(keys), dtype=np.object_)
        for position in range(len(keys)):
            states[position] = block[position]
        return cls(keys, steps, rows, states)

    def take(self, which: Any) -> "Entries":
        """The chosen entries (a slice, a mask or positions)."""
        return Entries(self.keys[which], self.steps[which], self.rows[which], self.states[which])

    def merge(self, newer: "Entries", capacity: int) -> "Entries":
        """The `capacity` smallest of both; an entry that both hold is taken from `newer`."""
        both = Entries(*(np.concatenate(pair) for pair in zip(self, newer, strict=True)))
        both = both.take(np.lexsort((both.rows, both.steps, both.keys)))  # stable: of two equal ones the newer is last
        last = np.ones(len(both.keys), dtype=bool)
        last[:-1] = (np.diff(both.steps) != 0) | (np.diff(both.rows) != 0)
        return both.take(last).take(slice(capacity))

    def owned(self) -> "Entries":
        """The same, with states that are no longer views of somebody's block."""
        for position, state in enumerate(self.states):
            if not state.flags.owndata:
                self.states[position] = state.copy()
        return self

    def block(self, row_shape: int, dtype: np.dtype[Any]) -> Wire:
        """The states as one array (m, E)."""
        return np.stack(self.states.tolist()) if len(self.states) else np.zeros((0, row_shape), dtype=dtype)
