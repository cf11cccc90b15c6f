"""The states that a training started from or passed through, as projections: what `coverage` measures distances to.

They are those of the step after the last: the initial states that the intervention would draw for it, and the states
at a quarter, half, three quarters and the end of its windows, run on the final weights from there. So old states
never mix with new weights, and nothing has to be kept while training goes on.

Legend: n states, L layers, D directions, B rows, T tokens of a training window, G rows of a step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.interface import RecurrentLanguageModel, State
from workers.context import TrialContext
from workers.evaluations.diagnostics import as_measured
from workers.evaluations.projections import Projections
from workers.interventions import Intervention
from workers.settings import TrialConfig
from workers.training import Batches, own_rows

MOST_ROWS = 64
"""Rows of a step that are run, evenly spread; each gives five states."""
QUARTERS = 4


@dataclass(frozen=True, eq=False)
class TrainedOn:
    """Projections of the states of some rows of a step."""

    projections: np.ndarray
    """(n, L, D) float32, rows in order; all finite."""
    rows: np.ndarray
    """(n,) int64 row of the step that each state belongs to."""
    nonfinite: int
    """States left out because they are not finite."""

    @classmethod
    def merged(cls, parts: "Sequence[TrainedOn]") -> "TrainedOn":
        """All states of these parts, in the order of their rows: the same however the rows were shared out."""
        rows = np.concatenate([part.rows for part in parts])
        order = np.argsort(rows, kind="stable")
        projections = np.concatenate([part.projections for part in parts])[order]
        return cls(projections, rows[order], sum(part.nonfinite for part in parts))

    def halves(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The states of every other row, and those of the rows between; None where one of them has none."""
        rows = np.unique(self.rows)
        even = np.isin(self.rows, rows[::2])
        return (self.projections[even], self.projections[~even]) if len(rows) > 1 else None


def trained_on(
    config: TrialConfig,
    context: TrialContext,
    model: RecurrentLanguageModel,
    batches: Batches,
    intervention: Intervention | None,
) -> TrainedOn | None:
    """The states of the step after the trial's last, whole on every worker; None where `coverage` is not to be had.

    Called on every worker while the intervention's bank is open, and after all else that is asked of the two: fitted
    noise takes in the last step's moments here. No intervention is `base`: its states are those of the first step, from
    zero. The model is measured as in the other diagnostics and put back.
    """
    if "coverage" not in config.eval.diagnostics or not config.eval.diagnostic_windows:
        return None
    step = 0 if intervention is None else config.trial.steps
    spread = np.linspace(0, config.batch_rows - 1, min(MOST_ROWS, config.batch_rows)).astype(np.int64)
    own = np.array(own_rows(config, context))
    parts: list[TrainedOn] = []
    with as_measured(model):
        projections = Projections(model, context.device)
        # The intervention is asked for rows as in training: its buffers and what was fetched ahead are for these.
        for rows in np.split(own, len(own) // config.micro_rows):
            chosen = np.flatnonzero(np.isin(rows, spread))
            if not projections.layers or not len(chosen):
                continue
            initial_state = None if intervention is None else intervention.initial_state(step, rows)
            windows_BT = torch.from_numpy(batches.windows(step, rows[chosen])[:, :-1]).to(context.device)
            start = model.zero_state(len(chosen)) if initial_state is None else _taken(model, initial_state, chosen)
            parts.append(training_states(model, projections, rows[chosen], windows_BT, start))
    gathered = [part for part in context.gather(TrainedOn.merged(parts) if parts else None) if part is not None]
    return TrainedOn.merged(gathered) if gathered else None


def training_states(
    model: RecurrentLanguageModel, projections: Projections, rows: np.ndarray, windows_BT: Tensor, state: State
) -> TrainedOn:
    """The initial `state` of these B rows and their states at T/4, T/2, 3T/4 and T of the windows."""
    found = [projections(state)]
    stops = np.unique(np.arange(QUARTERS + 1) * windows_BT.shape[1] // QUARTERS).tolist()
    with torch.no_grad():
        for start, stop in zip(stops, stops[1:], strict=False):
            _, state = model(windows_BT[:, start:stop], state)
            found.append(projections(state))
    projections_nLD = np.concatenate(found)
    finite_n = np.isfinite(projections_nLD).all(axis=(1, 2))
    return TrainedOn(projections_nLD[finite_n], np.tile(rows, len(found))[finite_n], int((~finite_n).sum()))


def _taken(model: RecurrentLanguageModel, state: State, chosen: np.ndarray) -> State:
    """Some of the sequences, in the dtypes that the model has now: in training its precision may have been another."""
    index = torch.from_numpy(chosen)
    return [
        {name: part[index.to(part.device)].to(spec[name].dtype) for name, part in parts.items()}
        for parts, spec in zip(state, model.state_spec(), strict=True)
    ]
