"""The control: the same steps, data and schedule as every other arm, from h_{-1} = 0."""

import numpy as np

from models.interface import State
from workers.interventions.contract import Intervention, InterventionContext


class ZeroState(Intervention):
    """h_{-1} = 0, as in ordinary training."""

    def initial_state(self, step: int, rows: np.ndarray) -> State | None:
        return None

    def observe(self, step: int, rows: np.ndarray, final_state: State) -> None:
        """Zero state needs to know nothing."""


def build(context: InterventionContext) -> ZeroState:
    """The intervention of the arm `zero`."""
    return ZeroState()
