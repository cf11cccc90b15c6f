"""A sequence's state as one contiguous vector, and back: what noise is drawn for and what the bank keeps.

Legend: B sequences, E elements of the touched parts over all layers.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from models.interface import PartSpec, State


class StateVector:
    """Packs the parts that an intervention touches into (B, E) float32 and builds whole states from such vectors.

    The order is layer by layer, part by part, each part flattened in its own layout: a layer, and within it a head,
    is a contiguous range.
    """

    def __init__(self, spec: Sequence[dict[str, PartSpec]], parts: Sequence[str] | None = None) -> None:
        """`spec` is the model's `state_spec()`, `parts` None means all. ValueError when no layer has any of `parts`."""
        self.spec = spec
        self.places = [
            (layer, part, layer_spec[part].shape)
            for layer, layer_spec in enumerate(spec)
            for part in (layer_spec if parts is None else parts)
            if part in layer_spec
        ]
        if not self.places:
            raise ValueError(f"this model's state has none of the parts {parts or 'that can be carried'}")
        self.elements = sum(int(np.prod(shape)) for _, _, shape in self.places)

    def pack(self, state: State, out: Tensor | None = None) -> Tensor:
        """(B, E) float32, detached, on the state's device or in `out`."""
        parts = [state[layer][part].detach().flatten(1) for layer, part, _ in self.places]
        vectors_BE = torch.empty(len(parts[0]), self.elements, device=parts[0].device) if out is None else out
        for piece, source in zip(vectors_BE.split([part.shape[1] for part in parts], dim=1), parts, strict=True):
            piece.copy_(source)
        return vectors_BE

    def unpack(self, vectors_BE: Tensor, device: torch.device | None = None) -> State:
        """The state of B sequences on `device` (default: the vectors'): zero in all parts that the vectors do not hold.

        Where dtype and device agree the parts are views of `vectors_BE`, not copies.
        """
        if vectors_BE.shape[1] != self.elements:
            raise ValueError(f"a state vector has {self.elements} elements here, not {vectors_BE.shape[1]}")
        where = vectors_BE.device if device is None else device
        touched: dict[tuple[int, str], Tensor] = {}
        start = 0
        for layer, part, shape in self.places:
            stop = start + int(np.prod(shape))
            dtype = self.spec[layer][part].dtype
            touched[layer, part] = vectors_BE[:, start:stop].reshape(-1, *shape).to(device=where, dtype=dtype)
            start = stop
        return [
            {
                name: touched[layer, name]
                if (layer, name) in touched
                else torch.zeros(len(vectors_BE), *part.shape, dtype=part.dtype, device=where)
                for name, part in parts.items()
            }
            for layer, parts in enumerate(self.spec)
        ]

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

    def ranges(self, scope: str) -> list[tuple[int, int]]:
        """(start, stop) in the vector of each `head`, each `layer`, or `all` of it; without a gap."""
        if scope == "head":
            return [(start, stop) for _, start, stop in self.groups()]
        if scope == "all":
            return [(0, self.elements)]
        sizes = np.zeros(len(self.spec), dtype=np.int64)
        for layer, _, shape in self.places:
            sizes[layer] += int(np.prod(shape))
        stops = np.cumsum(sizes)
        return [(int(stop - size), int(stop)) for size, stop in zip(sizes, stops, strict=True) if size]
