"""Reservoir: h_{-1} is drawn from a uniform sample of all final states that training has produced. Beyond the paper.

State passing takes the state of the step before; here a state may be many steps old, from older weights.
"""

import numpy as np

from models.interface import State
from workers.interventions.contract import Intervention, InterventionContext
from workers.interventions.resets import reset_rows
from workers.randomness import keyed_uniforms
from workers.reservoir_mirror import ReservoirMirror


class Reservoir(Intervention):
    """Each row draws one entry with replacement, keyed by (seed, step, row); reset as passed states are."""

    def __init__(self, context: InterventionContext, mirror: ReservoirMirror) -> None:
        self.context = context
        self.mirror = mirror

    def initial_state(self, step: int, rows: np.ndarray) -> State | None:
        states_mE = self.mirror.states(step)
        if not len(states_mE):
            return None
        drawn = keyed_uniforms("reservoir", self.context.seed, step, rows) * len(states_mE)
        initial_BE = states_mE[drawn.astype(np.int64)]
        initial_BE[np.flatnonzero(reset_rows(self.context.settings, self.context.seed, step, rows))] = 0.0
        return self.context.vector.unpack(initial_BE, self.context.device)

    def observe(self, step: int, rows: np.ndarray, final_state: State) -> None:
        self.mirror.offer(step, rows, final_state)


def build(context: InterventionContext) -> Reservoir:
    """The intervention of the arm `reservoir`."""
    bank = context.require_bank("reservoir")
    return Reservoir(context, ReservoirMirror(context.vector, bank, context.seed, context.device))
