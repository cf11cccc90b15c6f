"""The final states of one step on their way to be initial states of the next: through the bank, or kept here.

Two modes with the same results. `everything`: all rows go through the bank. `resident`: a worker keeps the states of
its own rows where they are, and the bank gets those that another worker asks for in the next step, and all of the
newest step before a snapshot. Legend: B rows of a micro-batch, E elements of a state vector, G rows of a step.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from models.interface import State
from storage.bank.contract import StateBank
from workers.state_vector import StateVector

Sources = Callable[[int, np.ndarray], np.ndarray]
"""(step, rows) -> the rows of step - 1 whose final states these rows start from."""


class CarriedStates:
    """Mode `everything`. One object serves one intervention of one worker."""

    def __init__(self, vector: StateVector, bank: StateBank, sources: Sources, device: torch.device) -> None:
        self.vector = vector
        self.bank = bank
        self.sources = sources
        self.device = device
        # Writing to memory that is known to the process is several times faster than to fresh pages.
        self._buffers: dict[tuple[str, int], Tensor] = {}
        self._withdrawals = 0

    def deposit(self, step: int, rows: np.ndarray, final_state: State) -> None:
        """Keep the final states of `rows`; a row that is not finite is kept as zeros."""
        self._to_bank(step, rows, self.vector.pack(final_state, self._buffer("packed", len(rows), self.device)))
        # The next step's states travel while this step's backward pass runs.
        self.bank.prefetch(step + 1, self.sources(step + 1, rows))

    def withdraw(self, step: int, rows: np.ndarray) -> Tensor:
        """(B, E) float32 on the device: where `rows` start; zeros at step 0. Valid until the next but one."""
        return self._from_bank(step, self.sources(step, rows)).to(self.device)

    def prepare_snapshot(self) -> None:
        """Bring to the bank what it must have of the newest step."""

    def _to_bank(self, step: int, rows: np.ndarray, vectors_BE: Tensor) -> None:
        host_BE = vectors_BE
        if vectors_BE.device.type != "cpu":
            host_BE = self._buffer("host", len(rows), torch.device("cpu")).copy_(vectors_BE)
        self.bank.deposit(step, rows, host_BE.numpy())

    def _from_bank(self, step: int, rows: np.ndarray) -> Tensor:
        # The states of the micro-batch whose backward pass is running are kept, so there are two of these buffers.
        self._withdrawals += 1
        host_BE = self._buffer(f"withdrawn {self._withdrawals % 2}", len(rows), torch.device("cpu"))
        self.bank.withdraw(step, rows, out=host_BE.numpy())
        return host_BE

    def _buffer(self, use: str, rows: int, device: torch.device) -> Tensor:
        if (use, rows) not in self._buffers:
            pinned = device.type == "cpu" and self.device.type == "cuda"
            self._buffers[use, rows] = torch.empty(rows, self.vector.elements, device=device, pin_memory=pinned)
        return self._buffers[use, rows]


class ResidentStates(CarriedStates):
    """Mode `resident`: states stay on the worker's device."""

    def __init__(
        self, vector: StateVector, bank: StateBank, sources: Sources, device: torch.device, own_rows: range
    ) -> None:
        """`own_rows` are the rows that this worker trains, out of all G of the bank's layout."""
        super().__init__(vector, bank, sources, device)
        self.own_rows = own_rows
        self._steps: dict[int, dict[int, Tensor]] = {}
        """Step -> row -> its state vector (E,), for the two newest steps."""

    def deposit(self, step: int, rows: np.ndarray, final_state: State) -> None:
        vectors_BE = as_the_bank_keeps(self.vector.pack(final_state), self.bank.layout.wire_dtype)
        for old in [kept for kept in self._steps if kept < step - 1]:
            del self._steps[old]
        self._steps.setdefault(step, {}).update(zip(rows.tolist(), vectors_BE, strict=True))
        crossing = np.isin(rows, self._asked_elsewhere(step + 1))
        if crossing.any():
            self._to_bank(step, rows[crossing], vectors_BE[torch.from_numpy(crossing)])

    def withdraw(self, step: int, rows: np.ndarray) -> Tensor:
        sources = self.sources(step, rows)
        kept = self._steps.get(step - 1, {})
        vectors_BE = torch.zeros(len(rows), self.vector.elements, device=self.device)
        here = np.array([row in kept for row in sources.tolist()], dtype=bool)
        for index in np.flatnonzero(here):
            vectors_BE[index] = kept[int(sources[index])]
        if step and not here.all():
            # Another worker's rows; after a resume this worker's own too, from the snapshot.
            vectors_BE[torch.from_numpy(~here)] = self._from_bank(step, sources[~here]).to(self.device)
        return vectors_BE

    def prepare_snapshot(self) -> None:
        if self._steps:
            newest = max(self._steps)
            rows = np.array(list(self._steps[newest]))
            self._to_bank(newest, rows, torch.stack(list(self._steps[newest].values())))

    def _asked_elsewhere(self, step: int) -> np.ndarray:
        """Rows of step - 1 that other workers start from at `step`."""
        everyone = np.arange(self.bank.layout.rows)
        others = everyone[(everyone < self.own_rows.start) | (everyone >= self.own_rows.stop)]
        return self.sources(step, others)


def as_the_bank_keeps(vectors_BE: Tensor, wire_dtype: str) -> Tensor:
    """The vectors with rows that are not finite zeroed, in the bank's precision, as float32; perhaps in place."""
    if wire_dtype == "bf16":
        vectors_BE = vectors_BE.bfloat16().float()
    finite_B = torch.isfinite(vectors_BE).all(dim=1)
    if not bool(finite_B.all()):
        vectors_BE[~finite_B] = 0.0
    return vectors_BE
