"""Correlated noise: Gaussian initial states with the mean and covariance of real ones. Beyond the paper.

h = mu + n^(-1/2) sum_i z_i (h_i - mu) over the n states h_i of a reservoir with mean mu, z standard normal. One z for
all entries (`scope=all`) keeps the whole covariance of the n states; one for each layer or head drops what lies between
them: a ladder from fitted noise, which keeps none, towards real states. The paper's 1.3B model fails with independent
noise, and its authors suspect correlations.
"""

import numpy as np
import torch
from torch import Tensor

from models.interface import State
from workers.interventions.contract import Intervention, InterventionContext
from workers.randomness import keyed_normals
from workers.reservoir_mirror import ReservoirMirror

BLOCK = 16
"""Rows of one matrix product, always: a product of another shape may round otherwise, and the noise of a row must not
depend on the rows beside it."""


class CorrelatedNoise(Intervention):
    """The coefficients z are keyed by (seed, step, row); the first step starts from zero."""

    def __init__(self, context: InterventionContext, mirror: ReservoirMirror) -> None:
        self.context = context
        self.mirror = mirror
        self.ranges = context.vector.ranges(context.settings.scope)

    def initial_state(self, step: int, rows: np.ndarray) -> State | None:
        states_nE = self.mirror.states(step)
        if not len(states_nE):
            return None
        n, groups = len(states_nE), len(self.ranges)
        normals_BK = keyed_normals("coefficients", self.context.seed, step, rows, groups * n)
        weights_BKn = _weights(normals_BK.view(len(rows), groups, n))
        noise_BE = self._products(rows, weights_BKn.to(self.context.device), states_nE)
        return self.context.vector.unpack(noise_BE, self.context.device)

    def _products(self, rows: np.ndarray, weights_BKn: Tensor, states_nE: Tensor) -> Tensor:
        """(B, E): for each range of entries its weights times the states, row r as row r % 16 of a block of 16."""
        noise_BE = torch.empty(len(rows), self.context.vector.elements, device=self.context.device)
        for block in np.unique(rows // BLOCK):
            members = np.flatnonzero(rows // BLOCK == block)
            slots = rows[members] % BLOCK
            padded = weights_BKn.new_zeros(len(self.ranges), BLOCK, len(states_nE))
            padded[:, slots] = weights_BKn[members].transpose(0, 1)
            for weights_Rn, (start, stop) in zip(padded, self.ranges, strict=True):
                noise_BE[members, start:stop] = (weights_Rn @ states_nE[:, start:stop])[slots]
        return noise_BE

    def observe(self, step: int, rows: np.ndarray, final_state: State) -> None:
        self.mirror.offer(step, rows, final_state)


def _weights(normals_BKn: Tensor) -> Tensor:
    """Weight of each state in mu + n^(-1/2) sum_i z_i (h_i - mu), with mu = (1/n) sum_i h_i multiplied out."""
    n = normals_BKn.shape[-1]
    return (normals_BKn - normals_BKn.mean(-1, keepdim=True)) / n**0.5 + 1.0 / n


def build(context: InterventionContext) -> CorrelatedNoise:
    """The intervention of the arm `correlated_noise`."""
    bank = context.require_bank("correlated_noise")
    return CorrelatedNoise(context, ReservoirMirror(context.vector, bank, context.seed, context.device))
