"""A sequence's state as one contiguous vector, and back: what noise is drawn for and what the bank keeps.

Legend: B sequences, E elements of the touched parts over all layers.
"""

from collections.abc import Sequence

import numpy as np
import torch

from models.interface import PartSpec, State


class StateVector:
    """Packs the parts that an intervention touches into (B, E) float32 and builds whole states from such vectors.

    The order is layer by layer, part by part, each part flattened in its own layout: a head is a contiguous range.
    """

    def __init__(self, spec: Sequence[dict[str, PartSpec]], parts: Sequence[str]) -> None:
        """`spec` is the model's `state_spec()`. Raises ValueError when no layer has any of `parts`."""
        self.spec = spec
        self.places = [
            (layer, part, layer_spec[part].shape)
            for layer, layer_spec in enumerate(spec)
            for part in parts
            if part in layer_spec
        ]
        if not self.places:
            raise ValueError(f"this model's state has none of the parts {list(parts)}")
        self.elements = sum(int(np.prod(shape)) for _, _, shape in self.places)

    def pack(self, state: State) -> np.ndarray:
        """(B, E) float32, detached, on the host."""
        vectors_BE = torch.cat([state[layer][part].detach().flatten(1).float() for layer, part, _ in self.places], 1)
        return vectors_BE.cpu().numpy()

    def unpack(self, vectors_BE: np.ndarray, zero_state: State) -> State:
        """`zero_state` (B sequences) with the touched parts replaced by the vectors, in its dtypes, on its device."""
        if vectors_BE.shape[1] != self.elements:
            raise ValueError(f"a state vector has {self.elements} elements here, not {vectors_BE.shape[1]}")
        state = [dict(layer_state) for layer_state in zero_state]
        source = torch.from_numpy(vectors_BE)
        start = 0
        for layer, part, shape in self.places:
            stop = start + int(np.prod(shape))
            like = zero_state[layer][part]
            state[layer][part] = source[:, start:stop].reshape(-1, *shape).to(device=like.device, dtype=like.dtype)
            start = stop
        return state

    def groups(self) -> list[tuple[str, int, int]]:
        """(name, start, stop) of each layer's heads in the vector; of the whole part where it has no heads."""
        groups: list[tuple[str, int, int]] = []
        start = 0
        for layer, part, shape in self.places:
            size = int(np.prod(shape))
            heads = shape[0] if self.spec[layer][part].head_axis == 0 else 1
            width = size // heads
            for head in range(heads):
                groups.append((f"{layer}.{part}.{head}", start + head * width, start + (head + 1) * width))
            start += size
        return groups
