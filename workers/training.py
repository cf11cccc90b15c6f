"""The training loop: one optimiser step over the rows of this worker, with an intervention before and after it.

Legend: B rows of a micro-batch, T tokens of a window, G rows of the global batch.
"""

import math
import time
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from models.interface import State
from storage.curves import Curve
from workers.background import BackgroundIntervention, MicroBatch
from workers.context import TrialContext
from workers.engine import set_learning_rate
from workers.interventions import Intervention
from workers.schedule import learning_rate
from workers.settings import TrialConfig

if TYPE_CHECKING:
    from deepspeed.runtime.engine import DeepSpeedEngine

RECURRENT = "recurrent"
REPORT_EVERY = 10
"""Steps between two progress reports. Counted in steps, not seconds, so that all workers report equally often."""


class NonFiniteStep(RuntimeError):
    """Too many steps in a row had to be skipped; the message says which, and what was not finite."""


class Batches(Protocol):
    """Where windows come from (`storage.batch_order`)."""

    def windows(self, step: int, rows: np.ndarray) -> np.ndarray:
        """Token windows (len(rows), T + 1) int64 of these rows at this step."""


@dataclass
class StepSums:
    """What a step adds up over its micro-batches and then over the workers."""

    nll: float = 0.0
    """Nats, over all tokens."""
    state_squares: float = 0.0
    """Of the recurrent final states of the rows that are finite."""
    finite_rows: float = 0.0
    zeroed_rows: float = 0.0
    """Rows whose final state is not finite: kept as zeros, out of moments and reservoir."""


@dataclass
class TrainingLoop:
    """Steps of one worker. `history` holds one entry per step and is part of every checkpoint."""

    engine: "DeepSpeedEngine"
    intervention: Intervention
    batches: Batches
    config: TrialConfig
    context: TrialContext
    history: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.background = BackgroundIntervention(self.intervention)

    def micro_batches(self) -> list[np.ndarray]:
        """This worker's rows: a contiguous block of the global batch, cut into micro-batches."""
        rows = np.array(own_rows(self.config, self.context))
        return np.split(rows, len(rows) // self.config.micro_rows)

    def step(self, step: int) -> None:
        """One optimiser step; appends to `history`.

        A step whose loss, gradient or state is not finite is left out by all workers alike: weights and moments stay.
        Raises NonFiniteStep when that happens more than `trial.max_skipped` times in a row.
        """
        started = time.perf_counter()
        rate = learning_rate(step, self.config.trial.steps, self.config.optimizer)
        set_learning_rate(self.engine, rate)
        own = StepSums()
        coming = [(step, rows) for rows in self.micro_batches()]
        # Nothing is drawn for a step that is not made: what an intervention learned must not depend on it.
        after = (step + 1, coming[0][1]) if step + 1 < self.config.trial.steps else None
        for number, (_, rows) in enumerate(coming):
            if number:
                # DeepSpeed counts micro-batches by calls of step(); the optimiser moves at the last one only.
                self.engine.step()
            self._forward_backward(step, rows, own, following=[*coming, after][number + 1])
        self.engine.step()
        sums = StepSums(*self.context.sum_over_workers(astuple(own)))
        tokens = self.config.batch_rows * self.config.window
        seconds = time.perf_counter() - started
        self.history.append(
            {
                "step": step + 1,
                "loss": _finite(sums.nll / tokens),
                "learning_rate": rate,
                "grad_norm": _finite(self.engine.get_global_grad_norm()),
                "skipped": int(not self.engine.was_step_applied()),
                "zeroed_rows": int(sums.zeroed_rows),
                "state_rms": self._state_rms(sums),
                "seconds": seconds,
                "tokens_per_second": tokens / seconds,
            }
        )
        self._refuse_too_many_skipped()

    def _forward_backward(self, step: int, rows: np.ndarray, sums: StepSums, following: MicroBatch | None) -> None:
        """Forward and backward pass of one micro-batch; gradients are accumulated in the engine."""
        windows_BT1 = torch.from_numpy(self.batches.windows(step, rows)).to(self.context.device)
        initial_state = self.background.initial_state(step, rows)
        nll_sum, final_state = self.engine(windows_BT1[:, :-1], windows_BT1[:, 1:], initial_state)
        self.background.observe(step, rows, final_state, following)
        squares, bad_rows = state_squares(final_state)
        nll = float(nll_sum.detach().double())
        sums.nll += nll
        sums.state_squares += squares
        sums.finite_rows += len(rows) - bad_rows
        sums.zeroed_rows += bad_rows
        # DeepSpeed averages over workers and micro-batches; we want the mean over all valid tokens of the global batch.
        parts = self.config.batch_rows // self.config.micro_rows
        scale = parts / (self.config.batch_rows * self.config.window)
        # A gradient of NaN reaches every worker's norm, so that all leave out this step without a word between them.
        self.engine.backward(nll_sum * (scale if math.isfinite(nll) and not bad_rows else math.nan))

    def _state_rms(self, sums: StepSums) -> float | None:
        """Root mean square of the recurrent final states of the finite rows, in units of the state."""
        layers = self.engine.module.model.state_spec()
        elements = sum(math.prod(part.shape) for layer in layers for name, part in layer.items() if name == RECURRENT)
        return math.sqrt(sums.state_squares / (sums.finite_rows * elements)) if sums.finite_rows and elements else None

    def _refuse_too_many_skipped(self) -> None:
        limit = self.config.trial.max_skipped
        newest = self.history[-limit - 1 :]
        if sum(bool(entry["skipped"]) for entry in newest) <= limit:
            return
        last = newest[-1]
        # What led to the end is what the run in the tracking store is to show.
        self.context.report(self.progress(len(self.history)))
        shown = {
            name: "not finite" if last[name] is None else last[name] for name in ("loss", "grad_norm", "state_rms")
        }
        raise NonFiniteStep(
            f"{limit + 1} steps in a row, up to step {last['step']}, were not finite and were skipped; at the last one "
            f"the loss is {shown['loss']}, the gradient's norm {shown['grad_norm']}, {last['zeroed_rows']} of "
            f"{self.config.batch_rows} rows had states that are not finite, and the others' root mean square is "
            f"{shown['state_rms']}; lower optimizer.peak_lr or intervention.sigma, or raise trial.max_skipped"
        )

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

    def evaluated(self, step: int, curve: Curve) -> dict[str, Any]:
        """What is reported after an evaluation on the select split: all of the history, and `select`, the curve's bins.

        Each bin is its right edge, its NLL sum in nats and its tokens, windows added up. A search may stop the trial
        here, so that this report is the last that is heard of it.
        """
        sums = (curve.edges[1:], curve.nll_sum.sum(axis=0), curve.count.sum(axis=0))
        bins = [list(one) for one in zip(*(column.tolist() for column in sums), strict=True)]
        return {**self.progress(step), "history": list(self.history), "step": step, "select": bins}

    def is_report_due(self, step: int) -> bool:
        """Whether `step` finished steps are to be reported."""
        return step % REPORT_EVERY == 0 or step == self.config.trial.steps


def own_rows(config: TrialConfig, context: TrialContext) -> range:
    """The rows that this worker trains: a contiguous block of the global batch."""
    per_worker = config.batch_rows // context.world
    return range(context.rank * per_worker, (context.rank + 1) * per_worker)


def state_squares(state: State) -> tuple[float, int]:
    """(sum of squares of the recurrent parts over the rows that are finite in every part, number of the other rows)."""
    parts = [(name, part) for layer in state for name, part in layer.items()]
    norms_pB = torch.stack([_norms(part.detach().flatten(1)) for _, part in parts])
    finite_B = torch.isfinite(norms_pB).all(dim=0)
    recurrent = [index for index, (name, _) in enumerate(parts) if name == RECURRENT]
    return float(norms_pB[recurrent][:, finite_B].square().sum()), int((~finite_B).sum())


def _norms(values_BE: Tensor) -> Tensor:
    """(B,) float64; in float32 first, which is faster, unless the squares of large, finite values overflow."""
    norm_B = torch.linalg.vector_norm(values_BE, dim=1, dtype=torch.float32).double()
    if bool(torch.isfinite(norm_B).all()):
        return norm_B
    return torch.linalg.vector_norm(values_BE, dim=1, dtype=torch.float64)


def _finite(value: float | None) -> float | None:
    """JSON has no NaN and no infinity."""
    return float(value) if value is not None and math.isfinite(value) else None
