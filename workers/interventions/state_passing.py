"""State passing: h_{-1} is the detached final state of the row's sequence one step ago (paper, section 4.4).

The windows are shuffled, so the state comes from an unrelated text. With `reset_probability` a row starts from zero
instead, drawn for each row and step.
"""

import numpy as np

from models.interface import State
from storage.bank.contract import StateBank
from workers.interventions.contract import Intervention, InterventionContext
from workers.randomness import keyed_uniforms


class StatePassing(Intervention):
    """Every step withdraws the states of step - 1 from the bank and deposits its own."""

    def __init__(self, context: InterventionContext, bank: StateBank) -> None:
        self.context = context
        self.bank = bank

    def initial_state(self, step: int, rows: np.ndarray) -> State | None:
        passed_BE = self.bank.withdraw(step, rows)
        reset_B = keyed_uniforms("reset", self.context.seed, step, rows) < self.context.settings.reset_probability
        passed_BE[reset_B] = 0.0
        return self.context.vector.unpack(passed_BE, self.context.zero_state(len(rows)))

    def observe(self, step: int, rows: np.ndarray, final_state: State) -> None:
        self.bank.deposit(step, rows, self.context.vector.pack(final_state))
        # The next step's states travel while this step's backward pass runs.
        self.bank.prefetch(step + 1, rows)


def build(context: InterventionContext) -> StatePassing:
    """The intervention of the arm `state_passing`."""
    if context.bank is None:
        raise ValueError("state passing needs a state bank")
    return StatePassing(context, context.bank)
