"""Sums over the entries of each head of a state, from which moments follow for any set of windows and positions.

Only the recurrent part counts. Legend: W windows, K heads over all layers, S the five sums.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from models.architecture import RECURRENT
from models.interface import RecurrentLanguageModel, State

COUNT, TOTAL, SQUARES, LARGEST, NONFINITE = range(5)
"""The last axis of sums: number of entries, their sum, sum of squares, largest magnitude, and how many are not finite.
What is not finite is in the sums too, so that they are not finite either."""


def recurrent_heads(model: RecurrentLanguageModel) -> list[tuple[int, int]]:
    """(layer, head) of each of the K heads; a layer whose recurrent part has no heads counts as one."""
    specs = [parts.get(RECURRENT) for parts in model.state_spec()]
    counts = [0 if spec is None else 1 if spec.head_axis is None else spec.shape[spec.head_axis] for spec in specs]
    return [(layer, head) for layer, count in enumerate(counts) for head in range(count)]


def recurrent_entries(model: RecurrentLanguageModel) -> int:
    """Entries of one sequence's recurrent parts over all layers."""
    return sum(math.prod(parts[RECURRENT].shape) for parts in model.state_spec() if RECURRENT in parts)


def head_sums(model: RecurrentLanguageModel, state: State) -> np.ndarray:
    """(W, K, S) float64 sums over the entries of each head in each sequence's state."""
    parts = [
        _part_sums(parts[RECURRENT], spec[RECURRENT].head_axis)
        for parts, spec in zip(state, model.state_spec(), strict=True)
        if RECURRENT in spec
    ]
    return torch.cat(parts, dim=1).cpu().numpy()


def _part_sums(part: Tensor, head_axis: int | None) -> Tensor:
    """(W, heads, S) of one layer's part (W, *shape)."""
    by_head = part.unsqueeze(1) if head_axis is None else part.movedim(head_axis + 1, 1)
    values_WHE = by_head.flatten(2).double()
    total_WH = values_WHE.sum(2)
    sums = [
        torch.full_like(total_WH, values_WHE.shape[2]),
        total_WH,
        values_WHE.square().sum(2),
        values_WHE.abs().amax(2),
        (~torch.isfinite(values_WHE)).double().sum(2),
    ]
    return torch.stack(sums, dim=2)


def merge_sums(sums: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
    """The sums (..., S) of a union of sets of entries, from theirs, stacked on the first axis."""
    stacked = np.asarray(sums)
    merged: np.ndarray = stacked.sum(axis=0)
    merged[..., LARGEST] = stacked[..., LARGEST].max(axis=0)
    return merged


def std_and_mean(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Population standard deviation and mean (...), float64, from sums (..., S)."""
    with np.errstate(invalid="ignore"):
        mean = sums[..., TOTAL] / sums[..., COUNT]
        return np.sqrt(np.maximum(sums[..., SQUARES] / sums[..., COUNT] - mean**2, 0.0)), mean
