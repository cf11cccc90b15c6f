"""Keyed shuffles in constant memory: a permutation of 0..n-1 that is computed at the indices asked for.

A Feistel network (its two halves may differ by a bit) permutes 0..2^b - 1, the smallest such range that holds n; an
index that lands at n or above is sent through again until it lands below ("cycle walking", Black and Rogaway, 2002),
which keeps it a permutation. As 2^b is below 2n for n above 2, that takes fewer than two passes on average.
"""

import hashlib

import numpy as np
import numpy.typing as npt

ROUNDS = 10
"""Feistel rounds. Four would do for a large range; small ranges have few bits per round and want more."""


def keyed_integer(key: str, size: int) -> int:
    """A number in 0..size - 1 that is fixed by `key` and uniform over keys (bias below 2^-190 for any real size)."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest(), "big") % size


class KeyedPermutation:
    """A permutation of 0..size - 1 fixed by `key`."""

    def __init__(self, size: int, key: str) -> None:
        """`size` from 1 to 2^62."""
        self.size = size
        bits = max(2, (size - 1).bit_length())
        self._shift = np.uint64(bits - bits // 2)
        self._left_mask, self._right_mask = np.uint64(2 ** (bits // 2) - 1), np.uint64(2 ** (bits - bits // 2) - 1)
        self._round_keys = [np.uint64(keyed_integer(f"{key}/{number}", 2**64)) for number in range(ROUNDS)]

    def __call__(self, indices: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Images of `indices` (any shape, each in 0..size - 1), int64."""
        values = np.asarray(indices, np.int64)
        if values.size and (values.min() < 0 or values.max() >= self.size):
            raise IndexError(f"an index lies outside 0..{self.size - 1}")
        images = self._network(values.astype(np.uint64).ravel())
        while (outside := images >= np.uint64(self.size)).any():
            images[outside] = self._network(images[outside])
        return images.astype(np.int64).reshape(values.shape)

    def _network(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        left, right = values >> self._shift, values & self._right_mask
        for left_key, right_key in zip(self._round_keys[::2], self._round_keys[1::2], strict=True):
            left = left ^ (_mix(right ^ left_key) & self._left_mask)
            right = right ^ (_mix(left ^ right_key) & self._right_mask)
        return (left << self._shift) | right


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): every input bit moves every output bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
