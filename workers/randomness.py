"""Random numbers keyed by what they are for, never by who draws them.

The key is (purpose, seed, step, row), so a row gets the same noise and the same resets on any worker, in any
micro-batch, before and after a resume.

Normals come from torch's own CPU generator at its own speed. `torch.Generator.manual_seed` would use 32 bits of a key
only, so the generator's whole state, the 624 words of a Mersenne Twister, is filled from a hash of the key instead.
"""

import hashlib
import threading

import numpy as np
import torch
from torch import Tensor

WORDS = 624
"""32-bit words of a Mersenne Twister's state."""
_STATE = np.dtype(
    [("seed", "u8"), ("left", "i4"), ("seeded", "i4"), ("next", "u8"), ("words", "u8", WORDS), ("normals", "u1", 40)]
)
"""Layout of `torch.Generator.get_state()` on the CPU; a test compares it with what torch itself makes of a seed."""


def keyed_generator(purpose: str, seed: int, step: int, row: int) -> np.random.Generator:
    """Generator for one (purpose, seed, step, row)."""
    key = _philox_key(purpose, seed, step, row)
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))


def keyed_normals(purpose: str, seed: int, step: int, rows: np.ndarray, size: int) -> Tensor:
    """Standard normals (len(rows), size) float32 on the CPU; row i depends on (purpose, seed, step, rows[i]) alone."""
    normals_BE = torch.empty(len(rows), size)
    twister = _own_twister()
    # All hashes first: between two rows of numbers the hash would find its code and data out of the cache.
    words = [_words(purpose, seed, step, int(row)) for row in rows]
    for normals_E, words_W in zip(normals_BE.unbind(0), words, strict=True):
        normals_E.normal_(generator=twister.filled(words_W))
    return normals_BE


_OF_THREAD = threading.local()


def _own_twister() -> "Twister":
    """This thread's generator: to make one for each call would cost as much as several rows' keys."""
    if not hasattr(_OF_THREAD, "twister"):
        _OF_THREAD.twister = Twister()
    twister: Twister = _OF_THREAD.twister
    return twister


def _words(purpose: str, seed: int, step: int, row: int) -> np.ndarray:
    """A Mersenne Twister's state for one key, (WORDS,) uint32."""
    return np.frombuffer(hashlib.shake_128(_name(purpose, seed, step, row)).digest(4 * WORDS), "<u4")


class Twister:
    """A generator of torch's whose whole state can be set, at the cost of a copy."""

    def __init__(self) -> None:
        state = np.zeros(1, _STATE)
        # As after seeding: the words are stirred before the first number is drawn.
        state["left"], state["seeded"] = 1, 1
        self._words = state["words"][0]
        self._state = torch.from_numpy(state.view(np.uint8))
        self._generator = torch.Generator()

    def filled(self, words: np.ndarray) -> torch.Generator:
        """The generator, with these 624 words (uint32) as its state; it serves until the next call."""
        self._words[:] = words
        self._generator.set_state(self._state)
        return self._generator


def keyed_uniforms(purpose: str, seed: int, step: int, rows: np.ndarray) -> np.ndarray:
    """The first uniform number in [0, 1) of each row's `keyed_generator`, (len(rows),) float64."""
    # One generator whose key is set anew: to make one for each row would take five times as long.
    philox = np.random.Philox(key=0)
    generator, fresh = np.random.Generator(philox), philox.state
    drawn = np.empty(len(rows))
    for index, row in enumerate(rows):
        fresh["state"]["key"] = np.frombuffer(_philox_key(purpose, seed, step, int(row)), "<u8")
        philox.state = fresh
        drawn[index] = generator.random()
    return drawn


def _philox_key(purpose: str, seed: int, step: int, row: int) -> bytes:
    return hashlib.blake2b(_name(purpose, seed, step, row), digest_size=16).digest()


def _name(purpose: str, seed: int, step: int, row: int) -> bytes:
    return f"{purpose}:{seed}:{step}:{row}".encode()
