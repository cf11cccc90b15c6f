"""The arms on a GPU without Ray and DeepSpeed: every arm for a few steps, and what a passed state costs.

For benchmarks/gpu_check.py. The interventions are those of a trial, with a bank in this process; the optimiser is
torch's own.
"""

import math
from functools import partial

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu_steps import CASES, VOCABULARY, seconds_of
from benchmarks.markdown import table
from models.interface import RecurrentLanguageModel
from models.loss import cross_entropy_sum
from models.registry import build_model
from models.settings import ModelSettings
from storage.bank.in_process import InProcessBank
from storage.bank.layout import BankLayout
from workers.arms import ARMS
from workers.carried_states import CarriedStates, ResidentStates, Sources
from workers.intervention_settings import InterventionSettings
from workers.interventions import Intervention, InterventionContext, build_intervention
from workers.state_vector import StateVector

STEPS, ROWS, CONTEXT, RATE = 20, 48, 64, 1e-3


def intervention_of(arm: str, model: RecurrentLanguageModel, rows: int, *, resident: bool = False) -> Intervention:
    """The intervention of an arm, with a bank of its own where it needs one."""
    settings = InterventionSettings(sigma=0.1)
    every_part = bool(ARMS[arm].bank) and "parts" not in ARMS[arm].settings
    device = model.head_weight().device
    vector = StateVector(model.state_spec(), None if every_part else settings.parts)
    layout = BankLayout(rows=rows, elements=vector.elements, groups=tuple(vector.groups()), capacity=settings.capacity)
    bank = InProcessBank(layout)

    def carry(sources: Sources) -> CarriedStates:
        if resident:
            return ResidentStates(vector, bank, sources, device, range(rows))
        return CarriedStates(vector, bank, sources, device)

    context = InterventionContext(
        settings=settings,
        vector=vector,
        rows=rows,
        seed=0,
        device=device,
        bank=bank,
        carry=carry,
        document_starts=lambda step, asked: np.full(len(asked), step == 0),
    )
    return build_intervention(arm, context)


class Loop:
    """Steps of one arm on random windows; random text repeats a few bytes, so that there is something to learn."""

    def __init__(
        self, arm: str, model: RecurrentLanguageModel, rows: int, context: int, *, resident: bool = False
    ) -> None:
        self.model, self.rows, self.context, self.done = model, rows, context, 0
        self.intervention = intervention_of(arm, model, rows, resident=resident)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
        self.losses: list[float] = []

    def windows(self) -> Tensor:
        """(rows, context + 1) int64, a function of the step alone."""
        generator = torch.Generator().manual_seed(self.done)
        starts = torch.randint(16, (self.rows, 1), generator=generator)
        return ((starts + torch.arange(self.context + 1)) % 16).to(self.model.head_weight().device)

    def step(self) -> None:
        """One optimiser step."""
        tokens, rows = self.windows(), np.arange(self.rows)
        hidden, final = self.model(tokens[:, :-1], self.intervention.initial_state(self.done, rows))
        nll_sum, count = cross_entropy_sum(hidden, tokens[:, 1:], self.model)
        self.intervention.observe(self.done, rows, final)
        self.optimizer.zero_grad()
        (nll_sum / count).backward()
        self.optimizer.step()
        self.losses.append(float(nll_sum.detach() / count))
        self.done += 1


def arms(kernel: str = "fused", device: str = "cuda", size: str = "demo") -> tuple[str, bool]:
    """First and last loss of every arm that trains; whether all fell."""
    lines, right = [], True
    for arm in (name for name, known in ARMS.items() if known.trains):
        model = build_model(ModelSettings(size=size, kernel=kernel), 256, seed=0).to(device)
        loop = Loop(arm, model, ROWS, CONTEXT)
        for _ in range(STEPS):
            loop.step()
        falls = all(map(math.isfinite, loop.losses)) and loop.losses[-1] < loop.losses[0]
        right &= falls
        lines.append([arm, f"{loop.losses[0]:.3f}", f"{loop.losses[-1]:.3f}", "yes" if falls else "NO"])
    return table(["arm", "first loss", f"loss of step {STEPS}", "falls"], lines), right


def passing() -> tuple[str, bool]:
    """Seconds of a step of each arm over those of a step from zero state."""
    architecture, size, rows, context = CASES[0]
    loops = {}
    for arm in ("zero", "state_passing", "random_noise"):
        built = build_model(ModelSettings(architecture=architecture, size=size, kernel="fused"), VOCABULARY, seed=0)
        loops[arm] = Loop(arm, built.in_precision(torch.bfloat16).to("cuda"), rows, context, resident=True)
    seconds = seconds_of({arm: partial(Loop.step, loop) for arm, loop in loops.items()})
    lines = [
        [arm, f"{taken * 1000:.0f} ms", f"{rows * context / taken:,.0f}", f"{taken / seconds['zero']:.3f}"]
        for arm, taken in seconds.items()
    ]
    return table(["arm", "step", "tokens/s", "over zero"], lines), True
