"""Fixed random projections of a state, layer by layer: the same for all trials whose states have one shape.

Legend: B sequences, L layers with a recurrent part, E its entries, D directions.
"""

import math

import numpy as np
import torch
from torch import Tensor

from models.architecture import RECURRENT
from models.interface import RecurrentLanguageModel, State
from workers.randomness import keyed_generator, keyed_normals

DIRECTIONS = 64
SEED = 0
"""Of all directions, in every trial: distances of two trials are to be comparable."""
MOST_ENTRIES = 65536
"""A direction has at most so many entries that are not zero, the same, randomly chosen ones for all directions of a
layer. Smaller layers are projected whole; of larger ones this bounds the directions to 16 MiB."""


class Projections:
    """Unit directions in the recurrent part of each layer, uniform on the sphere up to `MOST_ENTRIES` entries."""

    def __init__(self, model: RecurrentLanguageModel, device: torch.device) -> None:
        """Directions are drawn on the CPU, so that they are the same on any device."""
        sizes = {
            layer: math.prod(parts[RECURRENT].shape)
            for layer, parts in enumerate(model.state_spec())
            if RECURRENT in parts
        }
        self.layers = tuple(sizes)
        """Numbers of the L layers."""
        self._chosen = {layer: _chosen_entries(layer, entries) for layer, entries in sizes.items()}
        self._directions_DE = {layer: _directions(layer, entries).to(device=device) for layer, entries in sizes.items()}

    def __call__(self, state: State) -> np.ndarray:
        """(B, L, D) float32: the states of B sequences seen along each direction, in the unit of the state."""
        projected = [self._project(layer, state[layer][RECURRENT]) for layer in self.layers]
        return torch.stack(projected, dim=1).cpu().numpy()

    def _project(self, layer: int, part: Tensor) -> Tensor:
        values_BE = part.flatten(1).float()
        chosen = self._chosen[layer]
        if chosen is not None:
            values_BE = values_BE[:, torch.from_numpy(chosen).to(values_BE.device)]
        return values_BE @ self._directions_DE[layer].T


def _chosen_entries(layer: int, entries: int) -> np.ndarray | None:
    """Which entries of a layer the directions see, increasing; None for all."""
    if entries <= MOST_ENTRIES:
        return None
    generator = keyed_generator(f"projected entries of {entries}", SEED, 0, layer)
    return np.sort(generator.choice(entries, MOST_ENTRIES, replace=False))


def _directions(layer: int, entries: int) -> Tensor:
    """(D, E) float32 rows of length 1, keyed by the layer and its size."""
    size = min(entries, MOST_ENTRIES)
    normals_DE = keyed_normals(f"directions of {entries}", SEED, layer, np.arange(DIRECTIONS), size)
    return normals_DE / torch.linalg.vector_norm(normals_DE, dim=1, keepdim=True)
