"""Shuffled entries: a passed state whose entries are permuted within each head. Beyond the paper.

Every head keeps the exact distribution of its entries and loses all structure between them: what this arm lacks of
state passing's effect is due to structure, and what it has is due to marginals.
"""

import numpy as np
import torch
from torch import Tensor

from storage.bank.moments import group_runs
from workers.interventions.contract import InterventionContext
from workers.interventions.passing import ShuffledPassing
from workers.randomness import keyed_generator


class ShuffledEntries(ShuffledPassing):
    """A permutation for each row, step and head, keyed by (seed, step, row)."""

    def __init__(self, context: InterventionContext) -> None:
        super().__init__(context)
        self.runs = group_runs(tuple(context.vector.groups()))

    def alter(self, step: int, rows: np.ndarray, passed_BE: Tensor) -> Tensor:
        host_BE = passed_BE.cpu().numpy()
        for vector_E, row in zip(host_BE, rows, strict=True):
            generator = keyed_generator("shuffle", self.context.seed, step, int(row))
            for run in self.runs:
                heads_HW = vector_E[run.start : run.start + run.count * run.width].reshape(run.count, run.width)
                generator.permuted(heads_HW, axis=1, out=heads_HW)
        return torch.from_numpy(host_BE).to(passed_BE.device)


def build(context: InterventionContext) -> ShuffledEntries:
    """The intervention of the arm `shuffled_entries`."""
    return ShuffledEntries(context)
