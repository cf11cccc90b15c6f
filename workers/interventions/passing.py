"""What the arms that pass states have in common: final states of step - 1 become initial states, some reset to zero."""

import numpy as np
from torch import Tensor

from models.interface import State
from storage.bank.contract import sample_rows
from workers.interventions.contract import Intervention, InterventionContext
from workers.interventions.resets import reset_rows


class Passing(Intervention):
    """h_{-1}(step, row) is the detached final state of a row of step - 1, altered, or zero where it is reset."""

    def __init__(self, context: InterventionContext) -> None:
        if context.carry is None:
            raise ValueError("an arm that passes states needs a way to carry them")
        self.context = context
        self.carried = context.carry(self.sources)

    def initial_state(self, step: int, rows: np.ndarray) -> State | None:
        passed_BE = self.alter(step, rows, self.carried.withdraw(step, rows))
        passed_BE[np.flatnonzero(self.resets(step, rows))] = 0.0
        return self.context.vector.unpack(passed_BE, self.context.device)

    def observe(self, step: int, rows: np.ndarray, final_state: State) -> None:
        self.carried.deposit(step, rows, final_state)

    def prepare_snapshot(self) -> None:
        self.carried.prepare_snapshot()

    def sources(self, step: int, rows: np.ndarray) -> np.ndarray:
        """The rows of step - 1 that these rows start from."""
        return rows

    def resets(self, step: int, rows: np.ndarray) -> np.ndarray:
        """(len(rows),) bool: which rows start from zero instead."""
        return reset_rows(self.context.settings, self.context.seed, step, rows)

    def alter(self, step: int, rows: np.ndarray, passed_BE: Tensor) -> Tensor:
        """What becomes of the passed states (B, E) float32; may change them in place."""
        return passed_BE


class ShuffledPassing(Passing):
    """Passing between unrelated texts, in place or with rows permuted in every step."""

    def sources(self, step: int, rows: np.ndarray) -> np.ndarray:
        if self.context.settings.passing == "in_place":
            return rows
        return sample_rows(self.context.rows, step, self.context.rows, self.context.seed)[rows]
