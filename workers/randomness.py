"""Random numbers keyed by what they are for, never by who draws them.

A generator's key is (purpose, seed, step, row), so a row gets the same noise and the same resets on any worker, in any
micro-batch, before and after a resume. Philox is counter based: a fresh key costs microseconds.
"""

import hashlib

import numpy as np


def keyed_generator(purpose: str, seed: int, step: int, row: int) -> np.random.Generator:
    """Generator for one (purpose, seed, step, row)."""
    digest = hashlib.blake2b(f"{purpose}:{seed}:{step}:{row}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def keyed_normals(purpose: str, seed: int, step: int, rows: np.ndarray, size: int) -> np.ndarray:
    """Standard normals (len(rows), size) float32; row i depends on (purpose, seed, step, rows[i]) alone."""
    normals = np.empty((len(rows), size), dtype=np.float32)
    for index, row in enumerate(rows):
        keyed_generator(purpose, seed, step, int(row)).standard_normal(size, dtype=np.float32, out=normals[index])
    return normals


def keyed_uniforms(purpose: str, seed: int, step: int, rows: np.ndarray) -> np.ndarray:
    """One uniform number in [0, 1) per row, (len(rows),) float64."""
    return np.array([keyed_generator(purpose, seed, step, int(row)).random() for row in rows])
