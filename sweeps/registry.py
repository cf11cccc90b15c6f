"""The named sweeps. Adding one: a module `sweeps/<name>.py` that defines `SWEEP`, and its name here."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sweeps.settings import SettingError, Settings, nearest
from workers.settings import TrialConfig

NAMES = ("noise_scale", "interventions", "demo_base")


@dataclass(frozen=True, kw_only=True)
class NamedSweep:
    """One question: the trials that answer it and the settings they start from."""

    name: str
    question: str
    """The question in one sentence, shown by `--list` and above the table."""
    varies: str
    """The setting that the sweep varies, or an empty string."""
    presets: dict[str, dict[str, Any]]
    """Settings that differ from the defaults, for `demo` (minutes on a laptop) and `paper` (GPUs)."""
    trials: Callable[[Settings, list[int]], list[TrialConfig]]
    """(settings, seeds) -> the trials, in the order of the table."""
    fixed: tuple[str, ...] = ()
    """Settings that the sweep gives its trials itself, one or more values of each."""
    arms: tuple[str, ...] = ()
    """The arms that `sweep.arms` may choose from; none: the sweep has no such choice."""


def get_sweep(name: str) -> NamedSweep:
    """The sweep of that name. Raises SettingError that names the nearest one."""
    if name not in NAMES:
        raise SettingError(
            f"there is no sweep {name!r}; did you mean {nearest(name, list(NAMES))!r}? --list shows them all"
        )
    sweep: NamedSweep = importlib.import_module(f"sweeps.{name}").SWEEP
    return sweep
