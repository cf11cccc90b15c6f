"""Interventions as a trial puts them together, over an in-process bank, on a small model."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from models.interface import State
from models.registry import build_model
from models.settings import ModelSettings
from storage.bank.contract import StateBank
from storage.bank.in_process import InProcessBank
from storage.bank.layout import BankLayout
from workers.arms import parts_of
from workers.carried_states import CarriedStates, ResidentStates, Sources
from workers.intervention_settings import InterventionSettings
from workers.interventions import Intervention, InterventionContext, build_intervention
from workers.state_vector import StateVector

MODEL = build_model(ModelSettings(), 256, seed=0)
VECTOR = StateVector(MODEL.state_spec(), ["recurrent"])
EVERY_PART = StateVector(MODEL.state_spec())
ROWS = 6
CPU = torch.device("cpu")


def vector_of(arm: str) -> StateVector:
    """The state vector that a trial of the arm works on."""
    return EVERY_PART if arm == "tbtt" else VECTOR


def open_bank(arm: str, wire_dtype: str = "fp32", **settings: Any) -> InProcessBank:
    """A bank laid out for the arm."""
    chosen = InterventionSettings(**settings)
    content = {each for part in parts_of(arm, chosen.mixture) for each in part.bank}
    vector = vector_of(arm)
    layout = BankLayout(
        rows=ROWS,
        elements=vector.elements,
        wire_dtype=wire_dtype,
        groups=tuple(vector.groups()) if "moments" in content else (),
        capacity=chosen.capacity if "reservoir" in content else 0,
    )
    return InProcessBank(layout)


def build(
    arm: str,
    *,
    bank: StateBank | None = None,
    resident: range | None = None,
    seed: int = 7,
    document_starts: Callable[[int, np.ndarray], np.ndarray] | None = None,
    **settings: Any,
) -> Intervention:
    """The arm's intervention; `resident` are a worker's own rows in that mode."""
    vector = vector_of(arm)
    used = bank or open_bank(arm, **settings)

    def carry(sources: Sources) -> CarriedStates:
        if resident is None:
            return CarriedStates(vector, used, sources, CPU)
        return ResidentStates(vector, used, sources, CPU, resident)

    def never(step: int, rows: np.ndarray) -> np.ndarray:
        return np.zeros(len(rows), dtype=bool)

    context = InterventionContext(
        settings=InterventionSettings(**settings),
        vector=vector,
        rows=ROWS,
        seed=seed,
        device=CPU,
        bank=used,
        carry=carry,
        document_starts=document_starts or never,
    )
    return build_intervention(arm, context)


def final_state(step: int, rows: Sequence[int] | np.ndarray) -> State:
    """A final state that depends on step and row alone, so that different groupings of rows can be compared."""
    vectors = np.stack([np.random.default_rng([step, row]).standard_normal(EVERY_PART.elements) for row in rows])
    return EVERY_PART.unpack(torch.from_numpy(vectors.astype(np.float32)))


def drawn(intervention: Intervention, arm: str, groups: Sequence[Sequence[int]], steps: range) -> np.ndarray:
    """Initial states (steps, G, E) of one arm when its rows come in these groups."""
    vector = vector_of(arm)
    out = np.zeros((len(steps), ROWS, vector.elements), np.float32)
    for index, step in enumerate(steps):
        for group in groups:
            state = intervention.initial_state(step, np.array(group))
            out[index, list(group)] = 0 if state is None else vector.pack(state).numpy()
            intervention.observe(step, np.array(group), final_state(step, group))
    return out
