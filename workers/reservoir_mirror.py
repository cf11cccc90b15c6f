"""A worker's copy of the bank's reservoir, as one matrix on its device. Only states that are new to it travel.

Legend: m entries of at most `capacity`, E elements of a state vector, B rows of a micro-batch.
"""

import numpy as np
import torch
from torch import Tensor

from models.interface import State
from storage.bank.contract import StateBank
from workers.state_vector import StateVector


class ReservoirMirror:
    """The uniform sample of all final states so far, in the order of its keys.

    The order is part of the result: what is summed over the entries must not depend on when a worker first saw them,
    or a resumed trial would round otherwise.
    """

    def __init__(self, vector: StateVector, bank: StateBank, seed: int, device: torch.device) -> None:
        self.vector = vector
        self.bank = bank
        self.seed = seed
        self.device = device
        self._step = -1
        self._entries: list[tuple[int, int]] = []
        self._states_mE = torch.empty(0, vector.elements, device=device)

    def offer(self, step: int, rows: np.ndarray, final_state: State) -> None:
        """Offer the final states of `rows` to the reservoir; one that is not finite never enters."""
        self.bank.offer(step, rows, self.vector.pack(final_state).cpu().numpy(), self.seed)

    def states(self, step: int) -> Tensor:
        """(m, E) float32: the reservoir of the states of all steps before `step`. Not to be written to."""
        if step != self._step:
            self._catch_up(step)
        return self._states_mE

    def _catch_up(self, step: int) -> None:
        reservoir = self.bank.reservoir(step)
        entries = list(zip(reservoir.steps.tolist(), reservoir.rows.tolist(), strict=True))
        if entries != self._entries:
            place = {entry: index for index, entry in enumerate(self._entries)}
            known = np.array([place.get(entry, -1) for entry in entries])
            states_mE = torch.empty(len(entries), self.vector.elements, device=self.device)
            here, new = np.flatnonzero(known >= 0), np.flatnonzero(known < 0)
            states_mE[here] = self._states_mE[known[here]]
            fetched = self.bank.reservoir_states(reservoir.steps[new], reservoir.rows[new])
            states_mE[new] = torch.from_numpy(fetched).to(self.device)
            self._states_mE, self._entries = states_mE, entries
        self._step = step
