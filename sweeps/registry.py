"""The named sweeps. Adding one: a module `sweeps/<name>.py` that defines `SWEEP`, and its name here.

A user's own sweep is such a file anywhere: `python -m sweeps.run path/to/mine.py`.
"""

import importlib
import importlib.util
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeps.settings import TRIAL_GROUPS, SettingError, Settings, known_settings, nearest, type_of
from sweeps.trials import Trial

NAMES = (
    "noise_scale",
    "interventions",
    "beta",
    "reset_probability",
    "warmup",
    "context_length",
    "training_tokens",
    "model_size",
    "architectures",
    "steps",
    "learning_rate",
    "noise_structure",
    "what_is_passed",
    "demo_base",
    "search",
)

Values = Mapping[str, Any]
"""Settings by name."""


@dataclass(frozen=True, kw_only=True)
class NamedSweep:
    """One question: the trials that answer it and the settings they start from."""

    name: str
    question: str
    """The question in one sentence, shown by `--list` and above the table."""
    why: str
    """Why it matters, in a sentence or two."""
    figure: str = ""
    """The figure of the paper that asks the same; empty: none does."""
    paper_found: str
    """What the paper found; or that it did not ask."""
    contradicts: str
    """What would contradict that finding, or the idea that there are unexplored states."""
    varies: str
    """The setting that the sweep varies, or an empty string."""
    presets: Mapping[str, Values]
    """Settings that differ from the defaults, for `demo` (minutes on a laptop) and `paper` (GPUs)."""
    stages: Mapping[str, Mapping[str, Values]] = field(default_factory=dict)
    """By preset, further settings of each `sweep.stage`, the default one first; empty: the sweep has no stages."""
    trials: Callable[[Settings, list[int]], Sequence[Trial]]
    """(settings, seeds) -> the trials, in the order of the table."""
    fixed: tuple[str, ...] = ()
    """Settings that the sweep gives its trials itself, one or more values of each."""
    named: tuple[str, ...] = ()
    """Settings whose values belong to the names of the trials that use them."""
    facets: tuple[str, ...] = ()
    """Settings by whose values the trials fall into groups; only trials of one group are compared."""
    chooses: tuple[str, ...] = ()
    """Which of `sizes` and `architectures` of the settings `sweep.*` it heeds."""
    arms: tuple[str, ...] = ()
    """The arms that `sweep.arms` may choose from; none: the sweep has no such choice."""
    seeds_of: str = "trial.seed"
    """What `--seeds` varies."""

    def preset(self, name: str, stage: str) -> Values:
        """The settings of a preset and stage. Raises SettingError where the sweep has none of that name."""
        if name not in self.presets:
            raise SettingError(f"the sweep {self.name} has no preset {name!r}; it has {', '.join(self.presets)}")
        stages = self.stages.get(name, {})
        if stage and stage not in stages:
            there = f"it has {', '.join(stages)}" if stages else "it has no stages, leave sweep.stage out"
            raise SettingError(f"the sweep {self.name} has no stage {stage!r}; {there}")
        chosen = stage or next(iter(stages), "")
        return {**self.presets[name], **stages.get(chosen, {}), **({"sweep.stage": chosen} if chosen else {})}


def get_sweep(name: str) -> NamedSweep:
    """The sweep of that name, or that of a file of the user's. Raises SettingError that names the nearest one."""
    if name.endswith(".py"):
        return _sweep_of_file(Path(name))
    if name not in NAMES:
        raise SettingError(
            f"there is no sweep {name!r}; did you mean {nearest(name, list(NAMES))!r}? --list shows them all, and a "
            "sweep of your own is the path of its file, ending in .py"
        )
    sweep: NamedSweep = importlib.import_module(f"sweeps.{name}").SWEEP
    return sweep


def _check_definition(sweep: NamedSweep, path: Path) -> None:
    """Raise SettingError for a name that is no name of a folder, and for settings that there are not."""
    if not re.fullmatch(r"[\w-]+", sweep.name):
        raise SettingError(f"the sweep of {path} is called {sweep.name!r}; write letters, digits, - and _")
    of_trials = [one for one in known_settings() if one.partition(".")[0] in TRIAL_GROUPS]
    for role in ("varies", "fixed", "named", "facets"):
        given = getattr(sweep, role)
        for name in [given] * bool(given) if role == "varies" else given:
            if name not in of_trials:
                raise SettingError(
                    f"{role} of the sweep {sweep.name} is no setting of a trial: {name!r}; did you mean "
                    f"{nearest(name, of_trials)!r}?"
                )
    if sweep.varies and type_of(sweep.varies) not in (int, float):
        raise SettingError(f"varies of the sweep {sweep.name} is {sweep.varies}, which is no number; write it in named")


def _sweep_of_file(path: Path) -> NamedSweep:
    if not path.is_file():
        raise SettingError(f"there is no file {path}; write the path of a Python file that defines SWEEP")
    spec = importlib.util.spec_from_file_location(f"own_sweep_{path.stem}", path)
    assert spec is not None and spec.loader is not None, "a path that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SettingError:
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise SettingError(
            f"{path} cannot be run: {type(error).__name__}: {error} ({where.filename}, line {where.lineno})"
        ) from error
    sweep = getattr(module, "SWEEP", None)
    if not isinstance(sweep, NamedSweep):
        raise SettingError(f"{path} defines no SWEEP; write SWEEP = NamedSweep(...) as docs/own_sweeps.md shows")
    _check_definition(sweep, path)
    return sweep
