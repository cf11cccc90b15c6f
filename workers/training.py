"""The training loop: one optimiser step over the rows of this worker, with an intervention before and after it.

Legend: B rows of a micro-batch, T tokens of a window, G rows of the global batch.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from workers.context import TrialContext
from workers.engine import set_learning_rate
from workers.interventions import Intervention
from workers.schedule import learning_rate
from workers.settings import TrialConfig

if TYPE_CHECKING:
    from deepspeed.runtime.engine import DeepSpeedEngine

REPORT_EVERY = 10
"""Steps between two progress reports. Counted in steps, not seconds, so that all workers report equally often."""


class NonFiniteStep(RuntimeError):
    """Loss or gradient stopped being a number; the message says where."""


class Batches(Protocol):
    """Where windows come from (`storage.batch_order`)."""

    def windows(self, step: int, rows: np.ndarray) -> np.ndarray:
        """Token windows (len(rows), T + 1) int64 of these rows at this step."""


@dataclass
class TrainingLoop:
    """Steps of one worker. `history` holds one entry per finished step and is part of every checkpoint."""

    engine: "DeepSpeedEngine"
    intervention: Intervention
    batches: Batches
    config: TrialConfig
    context: TrialContext
    history: list[dict[str, float]] = field(default_factory=list)

    def micro_batches(self) -> Iterator[np.ndarray]:
        """This worker's rows: a contiguous block of the global batch, cut into micro-batches."""
        trial = self.config.trial
        per_worker = trial.rows // self.context.world
        rows = np.arange(self.context.rank * per_worker, (self.context.rank + 1) * per_worker)
        yield from np.split(rows, per_worker // trial.worker_micro_rows)

    def step(self, step: int) -> None:
        """One optimiser step; appends to `history`. Raises NonFiniteStep when it would make the weights no numbers."""
        trial = self.config.trial
        started = time.perf_counter()
        rate = learning_rate(step, trial.steps, self.config.optimizer)
        set_learning_rate(self.engine, rate)
        nll_sum = 0.0
        for number, rows in enumerate(self.micro_batches()):
            if number:
                # DeepSpeed counts micro-batches by calls of step(); the optimiser moves at the last one only.
                self.engine.step()
            nll_sum += self._forward_backward(step, rows)
        loss = self.context.sum_over_workers(nll_sum) / (trial.rows * trial.context)
        if not math.isfinite(loss):
            raise NonFiniteStep(f"the loss is {loss} at step {step + 1}; lower optimizer.peak_lr or intervention.sigma")
        self.engine.step()
        grad_norm = float(self.engine.get_global_grad_norm() or 0.0)
        if not math.isfinite(grad_norm):
            raise NonFiniteStep(f"the gradient is {grad_norm} at step {step + 1}; lower optimizer.peak_lr")
        seconds = time.perf_counter() - started
        self.history.append(
            {
                "step": step + 1,
                "loss": loss,
                "learning_rate": rate,
                "grad_norm": grad_norm,
                "seconds": seconds,
                "tokens_per_second": trial.rows * trial.context / seconds,
            }
        )

    def _forward_backward(self, step: int, rows: np.ndarray) -> float:
        """Summed NLL of one micro-batch, float64; gradients are accumulated in the engine."""
        windows_BT1 = torch.from_numpy(self.batches.windows(step, rows)).to(self.context.device)
        initial_state = self.intervention.initial_state(step, rows)
        nll_sum, final_state = self.engine(windows_BT1[:, :-1], windows_BT1[:, 1:], initial_state)
        self.intervention.observe(step, rows, final_state)
        # DeepSpeed averages over workers and micro-batches; we want the mean over all valid tokens of the global batch.
        trial = self.config.trial
        parts = trial.rows // trial.worker_micro_rows
        self.engine.backward(nll_sum * (parts / (trial.rows * trial.context)))
        return float(nll_sum.detach().double())

    def progress(self, step: int) -> dict[str, Any]:
        """What is reported after `step` steps: where it stands, and the history since the last report.

        `done` would be the natural name, but Tune ends a trial that reports it.
        """
        first = step - 1 - (step - 1) % REPORT_EVERY
        return {
            "phase": "training",
            "at": step,
            "of": self.config.trial.steps,
            "history": [entry for entry in self.history if entry["step"] > first],
        }

    def is_report_due(self, step: int) -> bool:
        """Whether `step` finished steps are to be reported."""
        return step % REPORT_EVERY == 0 or step == self.config.trial.steps
