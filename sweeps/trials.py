"""What a sweep's function lists: trials, and which of them start from the model that another one trains.

A sweep that starts from a checkpoint evaluates it as it is, in the arm `base`. Where there is none to start from
(`base.checkpoint=trained`), the sweep trains its base once, from a fresh initialisation and zero states: that trial
is then the row `base`, and the others of the same model wait for it and start from the model that it leaves behind.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sweeps.settings import SettingError, Settings
from workers.settings import FRESH_BASE, TRAINED_BASE, TrialConfig

Changes = Mapping[str, Any]
"""Settings `group.name` in which a trial differs from those of the sweep."""

BASE_WARMUP_SHARE = 0.1
"""Share of a base's steps spent on warm-up (paper: 0.1), whatever the post-training varies."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial of a sweep's list."""

    config: TrialConfig
    arm: str = ""
    """Name of its row where that is not the intervention's: `base` for a training run that others start from."""
    base: "Trial | None" = None
    """The trial whose model it starts from; None: a checkpoint or a fresh initialisation."""

    @property
    def row(self) -> str:
        """The arm under which it is shown."""
        return self.arm or self.config.arm


def base_trial(settings: Settings, seed: int, changes: Changes | None = None) -> Trial:
    """The untouched base: its checkpoint evaluated, or its training run where the sweep trains it."""
    config = settings.trial_config("base", seed=seed, changes=changes)
    return (
        Trial(config=base_training(config), arm="base")
        if config.base.checkpoint == TRAINED_BASE
        else Trial(config=config)
    )


def base_training(config: TrialConfig) -> TrialConfig:
    """The training run of a base: `base.steps` steps from the initialisation of `base.seed`, from zero states."""
    try:
        return _base_training(config)
    except ValueError as error:
        raise SettingError(
            f"in the training of the base, with base.steps and base.rows in their place: {error}"
        ) from error


def _base_training(config: TrialConfig) -> TrialConfig:
    base = config.base
    return replace(
        config,
        arm="zero",
        base=replace(base, checkpoint=FRESH_BASE, step=0),
        trial=replace(config.trial, steps=base.steps, rows=base.rows, seed=base.seed),
        optimizer=replace(
            config.optimizer,
            peak_lr=base.peak_lr,
            min_lr=base.min_lr,
            warmup_share=BASE_WARMUP_SHARE,
            schedule="cosine",
        ),
    )


def post_training(settings: Settings, base: Trial, arm: str, seed: int, changes: Changes | None = None) -> Trial:
    """A trial of this arm and seed that starts from `base`; `changes` must hold those of the base."""
    config = settings.trial_config(arm, seed=seed, changes=changes)
    return Trial(config=config, base=base if config.base.checkpoint == TRAINED_BASE else None)


def beside_base(
    settings: Settings, seeds: Sequence[int], arms: Iterable[tuple[str, Changes]], model: Changes | None = None
) -> list[Trial]:
    """The base once, then for each seed every arm with its changes.

    `model` holds changes that all of them share, base included: the model's size, for example.
    """
    shared, listed = dict(model or {}), list(arms)
    base = base_trial(settings, seeds[0], shared)
    return [base] + [
        post_training(settings, base, arm, seed, {**shared, **changes}) for seed in seeds for arm, changes in listed
    ]


def from_scratch(settings: Settings, seed: int, changes: Changes | None = None) -> Trial:
    """A training run from zero states whose seed keys the initialisation as well as the data order."""
    check_fresh(settings)
    if settings.base.seed not in (0, seed):
        raise SettingError("trial.seed keys the initialisation of a training from scratch too; leave base.seed out")
    return Trial(config=settings.trial_config("zero", seed=seed, changes={"base.seed": seed, **(changes or {})}))


def check_fresh(settings: Settings) -> None:
    """Raise SettingError unless the trials start from a fresh initialisation."""
    if settings.base.checkpoint != FRESH_BASE:
        raise SettingError(
            f"base.checkpoint is {settings.base.checkpoint!r}, but this sweep trains from scratch; leave it out, or "
            "write base.checkpoint=fresh"
        )


def swept(settings: Settings, name: str) -> Sequence[float | int]:
    """`sweep.values` as values of the setting `name`: whole numbers where it wants them. Raises SettingError."""
    group, field = name.split(".")
    if not isinstance(getattr(getattr(settings, group), field), int):
        return settings.sweep.values
    for value in settings.sweep.values:
        if not float(value).is_integer():
            raise SettingError(f"sweep.values holds {value:g}, but {name} is a whole number; write one")
    return [int(value) for value in settings.sweep.values]
