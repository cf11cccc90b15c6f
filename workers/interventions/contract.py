"""What an intervention is: the draw of h_{-1} for each row of each step, and what it learns from final states."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from models.interface import State
from storage.bank.contract import StateBank
from workers.carried_states import CarriedStates, Sources
from workers.intervention_settings import InterventionSettings
from workers.state_vector import StateVector


@dataclass(frozen=True)
class InterventionContext:
    """What an intervention may use. It never sees a rank, a process or a micro-batch."""

    settings: InterventionSettings
    vector: StateVector
    rows: int
    """G, rows of the global batch."""
    seed: int
    """`trial.seed`."""
    device: torch.device
    bank: StateBank | None = None
    """The trial's state bank, for the arms that use one."""
    carry: Callable[[Sources], CarriedStates] | None = None
    """How states get from one step to the next, for the arms that pass them."""
    document_starts: Callable[[int, np.ndarray], np.ndarray] | None = None
    """(step, rows) -> (len(rows),) bool: whether a row's window does not continue its last one; for TBTT."""

    def require_bank(self, arm: str) -> StateBank:
        """The bank. Raises ValueError where the trial has none."""
        if self.bank is None:
            raise ValueError(f"the arm {arm} needs a state bank")
        return self.bank


class Intervention(ABC):
    """One way to draw initial states. Rows are global row numbers, int64, in 0..G-1."""

    @abstractmethod
    def initial_state(self, step: int, rows: np.ndarray) -> State | None:
        """State before the first token for each of `rows`, detached; None means zero."""

    @abstractmethod
    def observe(self, step: int, rows: np.ndarray, final_state: State) -> None:
        """Take note of the states after the last token; called after the forward pass, beside the backward pass."""

    def prepare_snapshot(self) -> None:  # noqa: B027 - most arms have nothing to bring
        """Bring to the bank what a snapshot of it must hold; called on every worker."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed trial needs besides the bank's snapshot; JSON-compatible, equal on every worker."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        if state:
            raise ValueError(f"this intervention keeps nothing, but the checkpoint holds {sorted(state)}")
