"""How a trial of a study ended, and the user attributes that say more of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from optuna.trial import TrialState

REASON = "reason"
"""User attribute of a failed trial: why."""
SAME_AS = "same_as"
"""User attribute of a trial that did not run, because an earlier one had its settings: whose result it has."""
RUN_ID = "mlflow_run_id"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a trial ended."""

    state: TrialState
    values: tuple[float, ...] = ()
    """Of the objective, where it is complete."""
    steps: dict[int, float] = field(default_factory=dict)
    """Intermediate values by step, where it was stopped early."""
    attrs: dict[str, Any] = field(default_factory=dict)
    """User attributes."""


def failed(reason: str) -> Outcome:
    """A failure and why."""
    return Outcome(state=TrialState.FAIL, attrs={REASON: reason})


def as_twin(outcome: Outcome, label: str) -> Outcome:
    """The same outcome, for a trial that did not run because the one called `label` had its settings."""
    return Outcome(
        state=outcome.state,
        values=outcome.values,
        steps=outcome.steps,
        attrs={**outcome.attrs, SAME_AS: label},
    )


def is_finite(values: Sequence[float]) -> bool:
    """Whether every value is a number that can be compared."""
    return all(math.isfinite(value) for value in values)
