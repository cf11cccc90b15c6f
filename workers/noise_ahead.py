"""Keyed normals that are drawn one step ahead, while the backward pass runs, where they are few enough to be kept.

Legend: B rows of a micro-batch, E elements of a state vector.
"""

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from torch import Tensor

from workers.randomness import keyed_normals

AHEAD_LIMIT = 64 * 2**20
"""Most bytes of one micro-batch's noise that are drawn ahead; more are drawn when they are needed."""


class NoiseAhead:
    """The normals of (seed, step, row). What was drawn ahead is what would have been drawn: only the time differs."""

    def __init__(self, seed: int, elements: int) -> None:
        self.seed = seed
        self.elements = elements
        self._drawer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="noise")
        self._ahead: dict[tuple[int, bytes], Future[Tensor]] = {}

    def normals(self, step: int, rows: np.ndarray) -> Tensor:
        """(B, E) float32 of the caller's own."""
        drawn = self._ahead.pop((step, rows.tobytes()), None)
        return self._draw(step, rows) if drawn is None else drawn.result()

    def draw_ahead(self, step: int, rows: np.ndarray) -> None:
        """Begin to draw what `normals(step, rows)` will be asked for."""
        self._ahead = {key: drawn for key, drawn in self._ahead.items() if key[0] >= step - 1}
        if 4 * len(rows) * self.elements <= AHEAD_LIMIT:
            self._ahead[step, rows.tobytes()] = self._drawer.submit(self._draw, step, rows)

    def _draw(self, step: int, rows: np.ndarray) -> Tensor:
        return keyed_normals("noise", self.seed, step, rows, self.elements)
