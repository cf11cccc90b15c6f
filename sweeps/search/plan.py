"""The plan of a search: its references, its space and objective, and what any suggestion becomes. Imports no Optuna."""

import hashlib
import itertools
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from models.errors import ModelError
from storage.errors import StorageError
from sweeps.bases import pinned
from sweeps.names import ArmName
from sweeps.plan import checkpoint_hash, make_plan, text_hash, trained_hash
from sweeps.planned import PlannedTrial, SweepPlan
from sweeps.search.objective import Objective, make_objective
from sweeps.search.spaces import Space, configure, make_space
from sweeps.settings import SEARCH, SettingError
from workers.settings import TRAINED_BASE, TrialConfig, trial_identity

TRIALS = 20
"""Of a search, where `--trials` says nothing."""


@dataclass(frozen=True, kw_only=True)
class SearchPlan(SweepPlan):
    """A search with its settings resolved. `trials` are its references, the base and the control."""

    space: Space
    objective: Objective
    count: int
    """Trials of the study; not part of the identity, so that a larger number continues."""
    key: str
    """Hash of space, objective, settings and contents."""
    samples: tuple[PlannedTrial, ...]
    """Trials at the corners of the space: what the largest of them needs, any may need."""
    checkpoints: Mapping[str, str]
    """Content hash of each base that a trial may start from and that is there."""
    text: str
    """Content hash of the text."""

    @property
    def identity(self) -> str:
        """Hash of space, objective, settings and contents: whatever changes what is found."""
        return self.key

    @property
    def possible(self) -> tuple[PlannedTrial, ...]:
        """The references, and trials that stand for all that may be suggested."""
        return (*self.trials, *self.samples)

    @property
    def number_of_trials(self) -> int:
        """References and trials of the study."""
        return len(self.trials) + self.count

    @property
    def stops_early(self) -> bool:
        """Whether trials are compared on their way, and stopped."""
        every = self.settings.eval.every
        one_objective = len(self.objective.directions) == 1
        return one_objective and self.settings.search.reduction > 0 and 0 < every < self.settings.trial.steps

    @property
    def expected_seconds(self) -> float:
        """Of a trial that is not stopped early: the mean over the corners of the space."""
        return sum(trial.expected_seconds for trial in self.samples) / len(self.samples)

    def planned(self, number: int, suggestion: Mapping[str, Any]) -> PlannedTrial:
        """The trial that the study's trial of this number stands for. Raises ValueError for settings that clash."""
        config = pinned(configure(self.settings, suggestion), self.commits)
        base = base_of(config, self.trials)
        content = trained_hash(base.identity) if base else self.checkpoints[config.base.checkpoint]
        group = config.model.size if any(trial.arm.group for trial in self.trials) else ""
        label = f"{group} {config.arm} trial {number}".strip()
        return PlannedTrial(
            arm=ArmName(label=label, arm=config.arm, value=None, group=group),
            label=label,
            config=config,
            identity=trial_identity(config, content, self.text),
            base=base.identity if base else None,
        )

    def as_json(self) -> dict[str, Any]:
        """What `--dry-run --json` shows of a search beside its references."""
        return {
            "space": self.space.as_json(),
            "objective": {"name": self.objective.name, "meaning": self.objective.meaning},
            "search_trials": self.count,
            "stops_early": self.stops_early,
            "samples": [trial.as_json() for trial in self.samples],
        }


def make_search_plan(
    space: str | None, objective: str, count: int, preset: str, assignments: list[str], *, to_show: bool = False
) -> SearchPlan:
    """Resolve and check everything that can be checked without torch, ray, mlflow and optuna. Raises SettingError."""
    if space is None:
        raise SettingError("a search needs a space; write --space noise, --space passing or --space full")
    if count < 1:
        raise SettingError(f"--trials is {count}; write a whole number of at least 1")
    plan = make_plan(SEARCH, preset, assignments, 1, to_show=to_show)
    chosen = make_space(space, plan.settings)
    aim = make_objective(objective, plan.settings, chosen)
    configs = _corner_configs(chosen, plan)
    try:
        checkpoints = _checkpoints(configs, shown_only=to_show)
        text = text_hash(configs[0])
    except (ModelError, StorageError, ValueError, OSError) as error:
        raise SettingError(str(error)) from error
    made = SearchPlan(
        sweep=plan.sweep,
        preset=plan.preset,
        settings=plan.settings,
        trials=plan.trials,
        fetches=plan.fetches,
        commits=plan.commits,
        command=shlex.join([*shlex.split(plan.command), *_flags(chosen, aim, count)]),
        space=chosen,
        objective=aim,
        count=count,
        key=_key(plan, chosen, aim, configs, checkpoints, text),
        samples=(),
        checkpoints=checkpoints,
        text=text,
    )
    samples = [made.planned(number, suggestion) for number, suggestion in enumerate(_corners(chosen))]
    return replace(made, samples=tuple(samples))


def base_of(config: TrialConfig, references: Sequence[PlannedTrial]) -> PlannedTrial | None:
    """The reference whose model a trial starts from; None: it starts from a checkpoint that is there."""
    if config.base.checkpoint != TRAINED_BASE:
        return None
    return next(one for one in references if one.arm.arm == "base" and one.config.model == config.model)


def _flags(space: Space, objective: Objective, count: int) -> list[str]:
    return ["--space", space.name, "--objective", objective.name, "--trials", str(count)]


def _corners(space: Space) -> Iterator[dict[str, Any]]:
    """Suggestions of every arm with every choice, ranges at their ends together."""
    for arm in space.arms:
        parameters = space.of_arm(arm)
        chosen = [one for one in parameters if one.choices]
        for end, choices in itertools.product((0, -1), itertools.product(*(one.choices for one in chosen))):
            ranges = {one.setting: one.ends()[end] for one in parameters if not one.choices}
            yield {"arm": arm, **ranges, **{one.setting: value for one, value in zip(chosen, choices, strict=True)}}


def _corner_configs(space: Space, plan: SweepPlan) -> list[TrialConfig]:
    try:
        return [pinned(configure(plan.settings, suggestion), plan.commits) for suggestion in _corners(space)]
    except ValueError as error:
        raise SettingError(f"a trial that the space {space.name} may suggest is not possible: {error}") from error


def _checkpoints(configs: list[TrialConfig], *, shown_only: bool) -> dict[str, str]:
    there = [config for config in configs if config.base.checkpoint != TRAINED_BASE]
    first = {config.base.checkpoint: config for config in reversed(there)}
    return {name: checkpoint_hash(config, shown_only=shown_only) for name, config in first.items()}


def _key(
    plan: SweepPlan,
    space: Space,
    objective: Objective,
    configs: list[TrialConfig],
    checkpoints: Mapping[str, str],
    text: str,
) -> str:
    """Hash of what decides which trials are suggested and what they are worth."""
    settings = plan.settings
    content = {
        "space": space.as_json(),
        "objective": [objective.name, objective.far, objective.near],
        "search": [settings.search.seed, settings.search.reduction, settings.eval.every],
        "references": [trial.identity for trial in plan.trials],
        # Settings that only some arms use are in the identities of these.
        "trials": [trial_identity(config, checkpoints.get(config.base.checkpoint, ""), text) for config in configs],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def check_store_of(plan: SearchPlan, store: str | None) -> None:
    """Raise SettingError for a store of the study that cannot be one."""
    if store is None:
        return
    kind, _, rest = store.partition(":")
    if not rest or (kind != "journal" and not rest.startswith("//")):
        raise SettingError(f"--store is {store!r}; write sqlite:///FILE, journal:FILE or the address of a database")
    if store == plan.settings.tracking.uri:
        raise SettingError(
            f"--store and tracking.uri are both {store}, but Optuna and MLflow cannot share a database; write another"
        )
    path = rest.removeprefix("///") if kind == "sqlite" else rest
    if kind in ("sqlite", "journal") and not Path(path).absolute().parent.is_dir():
        raise SettingError(f"--store {store}: there is no folder {Path(path).absolute().parent}; make it first")
