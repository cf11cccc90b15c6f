"""Fitted noise: h_{-1} ~ N(mu, var), one mean and one variance per layer and head (paper, section 4.3, eqs. 5 and 6).

After each step, with Mean and the population Var over all G rows and all entries of a head:
mu <- (1 - beta) Mean + beta mu and var <- (1 - beta) Var + beta var. The NEW batch weighs 1 - beta. Both start at
zero, so the first step starts from zero state.
"""

from typing import Any

import numpy as np
import torch

from models.interface import State
from storage.bank.contract import StateBank
from storage.bank.moments import row_moments
from workers.interventions.contract import Intervention, InterventionContext
from workers.randomness import keyed_normals


class FittedNoise(Intervention):
    """Running statistics in float64 over the K groups of the bank's layout; the bank sums them over workers."""

    def __init__(self, context: InterventionContext, bank: StateBank) -> None:
        self.context = context
        self.bank = bank
        groups = context.vector.groups()
        self.widths_K = torch.tensor([stop - start for _, start, stop in groups])
        self.mean_K = np.zeros(len(groups))
        self.var_K = np.zeros(len(groups))
        self.updates = 0
        """Steps whose moments the statistics hold."""

    def initial_state(self, step: int, rows: np.ndarray) -> State | None:
        self._update(step)
        if step == 0:
            return None
        normals_BE = keyed_normals("noise", self.context.seed, step, rows, self.context.vector.elements)
        normals_BE.mul_(self._per_element(np.sqrt(self.var_K))).add_(self._per_element(self.mean_K))
        return self.context.vector.unpack(normals_BE, self.context.device)

    def observe(self, step: int, rows: np.ndarray, final_state: State) -> None:
        states_BE = self.context.vector.pack(final_state).cpu().numpy()
        self.bank.merge_moments(step, rows, row_moments(states_BE, self.bank.layout))

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "mean": self.mean_K.tolist(), "var": self.var_K.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = int(state["updates"])
        self.mean_K, self.var_K = np.array(state["mean"]), np.array(state["var"])

    def _update(self, step: int) -> None:
        """Take in the moments of step - 1, once; the first micro-batch of a step comes here first."""
        if self.updates == step:
            return
        beta, moments = self.context.settings.beta, self.bank.moments(step - 1)
        # Where no row of a step was finite there is nothing to take in.
        counted = moments.count > 0
        self.mean_K = np.where(counted, (1 - beta) * moments.mean + beta * self.mean_K, self.mean_K)
        self.var_K = np.where(counted, (1 - beta) * moments.std**2 + beta * self.var_K, self.var_K)
        self.updates = step

    def _per_element(self, values_K: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values_K).float().repeat_interleave(self.widths_K)


def build(context: InterventionContext) -> FittedNoise:
    """The intervention of the arm `fitted_noise`."""
    return FittedNoise(context, context.require_bank("fitted_noise"))
