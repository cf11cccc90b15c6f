"""A planned trial and a planned sweep: identity, needs, expected time. `sweeps.plan` makes them; imports no torch."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from models.architecture import ModelDims
from sweeps.expected_time import expected_seconds
from sweeps.names import ArmName
from sweeps.registry import NamedSweep
from sweeps.settings import Settings
from workers.bank_plan import BankPlan, plan_bank
from workers.settings import TrialConfig
from workers.shapes import model_dims

LONGEST_NAME = 100
"""Characters of a label in the name of a folder."""


@dataclass(frozen=True, kw_only=True)
class PlannedTrial:
    """One trial as it will run."""

    arm: ArmName
    label: str
    """The arm's label, with the seed where there are several."""
    config: TrialConfig
    """Its `base.checkpoint` is `trained` where it starts from the model of another trial."""
    identity: str
    base: str | None = None
    """Identity of the trial whose model it starts from."""

    @property
    def name(self) -> str:
        """Folder name: the arm, its value and the start of the identity."""
        # A sweep of one's own may name its trials by anything, by paths of checkpoints for example.
        words = re.sub(r"[^\w.+-]+", "-", self.label)[:LONGEST_NAME]
        return f"{words}-{self.identity[:8]}"

    @property
    def dims(self) -> ModelDims:
        """Dimensions of the model."""
        return model_dims(self.config)

    @property
    def cpus(self) -> int:
        """CPUs that the trial keeps busy."""
        return self.config.trial.workers * self.config.trial.threads

    @property
    def bank(self) -> BankPlan | None:
        """What it asks of the state bank; None for an arm that uses none."""
        return plan_bank(self.config)

    @property
    def expected_seconds(self) -> float:
        """Rough duration on one CPU thread of this kind of machine, see `sweeps.expected_time`."""
        return expected_seconds(self.config, self.dims.parameters())

    def as_json(self) -> dict[str, Any]:
        """What `--dry-run --json` shows of the trial."""
        return {
            "arm": self.config.arm,
            "seed": self.config.trial.seed,
            "label": self.label,
            "name": self.arm.as_json(),
            "identity": self.identity,
            "starts_from": self.base,
            "config": self.config.to_dict(),
            "resources": {"workers": self.config.trial.workers, "cpus": self.cpus},
            "bank": self.bank.as_json() if self.bank else None,
            "expected_seconds": round(self.expected_seconds, 1),
        }


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """A named sweep with its settings resolved into trials."""

    sweep: NamedSweep
    preset: str
    settings: Settings
    trials: tuple[PlannedTrial, ...]
    command: str
    """The command line that makes this plan."""
    fetches: tuple[str, ...] = ()
    """What a run fetches from the hub before it starts, a phrase each."""
    commits: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Commits of the bases on the hub, see `sweeps.bases`."""

    @property
    def identity(self) -> str:
        """Hash of the sweep's name and its trials' identities."""
        text = "\n".join([self.sweep.name, *sorted(trial.identity for trial in self.trials)])
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def needs_gpus(self) -> bool:
        """Whether its trials ask for GPUs, not for whatever there is."""
        return self.settings.trial.device == "cuda"

    @property
    def default_folder(self) -> Path:
        """`runs/<sweep>-<identity8>`."""
        return Path("runs") / f"{self.sweep.name}-{self.identity[:8]}"

    @property
    def possible(self) -> tuple[PlannedTrial, ...]:
        """Trials that stand for all that may run: of a sweep all of them."""
        return self.trials

    @property
    def number_of_trials(self) -> int:
        """How many run."""
        return len(self.trials)

    def concurrency(self, cpus: int, gpus: int = 0) -> int:
        """Trials that run at once on so many CPUs and GPUs."""
        at_once = cpus // max(trial.cpus for trial in self.possible)
        if gpus and self.settings.trial.device != "cpu":
            at_once = min(at_once, gpus // self.settings.trial.workers)
        return max(1, at_once)
