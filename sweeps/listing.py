"""What a sweep's function may list, checked before anything rests on it: sweeps are files that users write too."""

import dataclasses
import traceback
from collections.abc import Sequence

from sweeps.registry import NamedSweep
from sweeps.settings import SettingError, Settings
from sweeps.trials import Trial
from workers.arms import ARMS
from workers.settings import TrialConfig

SHARED = ("data", "eval")
"""Groups in which all trials of a sweep are alike: curves are compared on the same text, window by window."""
KNOWN_MISTAKES = (ValueError, OSError)
"""What settings and files raise, with a sentence of their own."""


def listed_trials(sweep: NamedSweep, settings: Settings, seeds: list[int]) -> list[Trial]:
    """The sweep's trials, in the order of its table. Raises SettingError for what cannot be a sweep."""
    try:
        listed = list(sweep.trials(settings, seeds))
    except KNOWN_MISTAKES:
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise SettingError(
            f"the sweep {sweep.name} cannot list its trials: {type(error).__name__}: {error} "
            f"({where.filename}, line {where.lineno})"
        ) from error
    if not listed:
        raise SettingError(f"the sweep {sweep.name} lists no trial")
    for one in listed:
        if not isinstance(one, Trial):
            raise SettingError(f"the sweep {sweep.name} lists {one!r:.80}, which is no Trial of sweeps.trials")
    _check_alike(sweep.name, [trial.config for trial in listed])
    return listed


def _check_alike(sweep: str, configs: Sequence[TrialConfig]) -> None:
    first = configs[0]
    for config in configs[1:]:
        for group in SHARED:
            ours, theirs = dataclasses.asdict(getattr(first, group)), dataclasses.asdict(getattr(config, group))
            differs = next((name for name, value in ours.items() if theirs[name] != value), None)
            if differs:
                raise SettingError(
                    f"trials of the sweep {sweep} differ in {group}.{differs}, but all of them must read the same text "
                    "in the same windows to be compared"
                )
        if config.trial.device != first.trial.device:
            raise SettingError(f"trials of the sweep {sweep} differ in trial.device, but all of them run on the same")


def check_start(trial: Trial, label: str) -> None:
    """Raise SettingError where the trial cannot start from the model that its base leaves behind."""
    assert trial.base is not None, "a trial with a base"
    base, own = trial.base.config, trial.config
    if not ARMS[base.arm].trains:
        raise SettingError(f"{label} starts from a trial of the arm {base.arm}, which trains no model")
    if (base.model.architecture, base.model.size) != (own.model.architecture, own.model.size):
        raise SettingError(
            f"{label} is a {own.model.architecture} {own.model.size}, but starts from the model of a "
            f"{base.model.architecture} {base.model.size}"
        )
    if own.base.step and own.base.step not in base.trial.keep_models:
        raise SettingError(
            f"{label} starts from step {own.base.step} of its base, which keeps none of that step; name it in the "
            "base's trial.keep_models"
        )
