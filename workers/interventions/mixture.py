"""Mixture: each row of each step starts as one arm or as another would have it start. Beyond the paper.

With `zero` as the first arm the probability is a reset probability for any arm.
"""

from typing import Any

import numpy as np
import torch

from models.interface import State
from workers.interventions.contract import Intervention, InterventionContext
from workers.randomness import keyed_uniforms


class Mixture(Intervention):
    """Both arms see every final state; which one gives a row its initial state is keyed by (seed, step, row)."""

    def __init__(self, context: InterventionContext, arms: dict[str, Intervention]) -> None:
        self.context = context
        self.arms = arms

    def initial_state(self, step: int, rows: np.ndarray) -> State | None:
        first, second = (self._packed(arm, step, rows) for arm in self.arms.values())
        drawn = keyed_uniforms("mixture", self.context.seed, step, rows) < self.context.settings.mixture_probability
        second[np.flatnonzero(drawn)] = first[np.flatnonzero(drawn)]
        return self.context.vector.unpack(second, self.context.device)

    def _packed(self, arm: Intervention, step: int, rows: np.ndarray) -> torch.Tensor:
        """(B, E) float32 of its own memory."""
        state = arm.initial_state(step, rows)
        if state is None:
            return torch.zeros(len(rows), self.context.vector.elements, device=self.context.device)
        return self.context.vector.pack(state)

    def observe(self, step: int, rows: np.ndarray, final_state: State) -> None:
        for arm in self.arms.values():
            arm.observe(step, rows, final_state)

    def prepare_snapshot(self) -> None:
        for arm in self.arms.values():
            arm.prepare_snapshot()

    def state_dict(self) -> dict[str, Any]:
        return {name: arm.state_dict() for name, arm in self.arms.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, arm in self.arms.items():
            arm.load_state_dict(state[name])


def build(context: InterventionContext) -> Mixture:
    """The intervention of the arm `mixture`."""
    from workers.interventions import build_intervention

    return Mixture(context, {name: build_intervention(name, context) for name in context.settings.mixture})
