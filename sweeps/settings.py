"""All settings of a sweep, and how `--set group.name=value` changes them.

Every mistake is a `SettingError`: one sentence that says what is wrong, where, and what to write instead.
"""

import dataclasses
import difflib
import glob
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from models.settings import ModelSettings
from models.shipped import shipped_base, shipped_bases
from storage.settings import BYTES_NAME, BankSettings, DataSettings, TrackingSettings
from workers.settings import (
    FRESH_BASE,
    TRIAL_GROUPS,
    BaseSettings,
    EvalSettings,
    InterventionSettings,
    OptimizerSettings,
    TrialConfig,
    TrialSettings,
)


class SettingError(ValueError):
    """A sweep, flag or setting that makes no sense; the command line prints it and exits with 2."""


@dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """What the sweep itself varies."""

    values: tuple[float, ...] = ()
    """Values of the setting that the sweep varies; empty: the sweep's own list."""
    arms: tuple[str, ...] = ()
    """Arms to run, of those the sweep has; empty: all of them. The base and the control always run."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every setting of a sweep: those that all its trials share, where to track, and what to vary."""

    model: ModelSettings = field(default_factory=ModelSettings)
    base: BaseSettings = field(default_factory=BaseSettings)
    data: DataSettings = field(default_factory=DataSettings)
    intervention: InterventionSettings = field(default_factory=InterventionSettings)
    trial: TrialSettings = field(default_factory=TrialSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    eval: EvalSettings = field(default_factory=EvalSettings)
    bank: BankSettings = field(default_factory=BankSettings)
    tracking: TrackingSettings = field(default_factory=TrackingSettings)
    sweep: SweepSettings = field(default_factory=SweepSettings)

    def trial_config(self, arm: str, *, seed: int, **intervention: Any) -> TrialConfig:
        """The trial of one arm and seed, with the given intervention settings changed."""
        groups = {name: getattr(self, name) for name in TRIAL_GROUPS}
        groups["trial"] = dataclasses.replace(self.trial, seed=seed)
        groups["intervention"] = dataclasses.replace(self.intervention, **intervention)
        return TrialConfig(arm=arm, **groups)


GROUPS: dict[str, type[Any]] = {**TRIAL_GROUPS, "tracking": TrackingSettings, "sweep": SweepSettings}


def known_settings() -> list[str]:
    """Names of all settings, `group.name`."""
    return [f"{group}.{one.name}" for group, settings in GROUPS.items() for one in dataclasses.fields(settings)]


def nearest(name: str, known: list[str]) -> str:
    """The known name most like `name`."""
    return difflib.get_close_matches(name, known, n=1, cutoff=0)[0]


def build_settings(
    preset: dict[str, Any], assignments: list[str], varies: str, fixed: tuple[str, ...] = ()
) -> Settings:
    """Settings from a preset's values and the `--set` assignments, which win.

    `varies` is the setting that the sweep itself varies, `fixed` are those it gives its trials itself. Where nothing
    says what to start from, it is the base that is shipped for the model. Paths become absolute. Raises SettingError.
    """
    values = dict(preset)
    for assignment in assignments:
        key, text = _split(assignment)
        if key == varies:
            raise SettingError(f"{key} is what this sweep varies; write --set sweep.values=... instead")
        if key in fixed:
            raise SettingError(f"{key} is what this sweep gives its trials itself; leave it out")
        values[key] = parse_value(key, text)
    groups: dict[str, dict[str, Any]] = {name: {} for name in GROUPS}
    for key, value in values.items():
        group, name = key.split(".")
        groups[group][name] = value
    try:
        model = ModelSettings(**groups["model"])
        if "checkpoint" not in groups["base"]:
            groups["base"]["checkpoint"] = shipped_base(model.architecture, model.size)
        return _with_absolute_paths(Settings(**{name: GROUPS[name](**given) for name, given in groups.items()}))
    except SettingError:
        raise
    except ValueError as error:
        raise SettingError(str(error)) from error


def _with_absolute_paths(settings: Settings) -> Settings:
    """The same settings with paths of files and of the base absolute: workers of a trial run in other folders."""
    data, base = settings.data, settings.base
    tokenizer = data.tokenizer if data.tokenizer == BYTES_NAME else _absolute(data.tokenizer)
    data = dataclasses.replace(data, files=tuple(map(_absolute_pattern, data.files)), tokenizer=tokenizer)
    named = base.checkpoint == FRESH_BASE or base.checkpoint in shipped_bases()
    # A name that is no folder stays as it was written, for the sentence that says so.
    if not named and Path(base.checkpoint).expanduser().is_dir():
        base = dataclasses.replace(base, checkpoint=_absolute(base.checkpoint))
    return dataclasses.replace(settings, data=data, base=base)


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def _absolute_pattern(pattern: str) -> str:
    """The absolute path of a file, or an absolute glob, in which the current folder's own name is no pattern."""
    path = Path(pattern).expanduser()
    if path.is_absolute() or path.exists() or not glob.has_magic(pattern):
        return str(path.absolute())
    return str(Path(glob.escape(str(Path.cwd())), path))


def _split(assignment: str) -> tuple[str, str]:
    key, separator, text = assignment.partition("=")
    key = key.strip()
    if not separator:
        raise SettingError(f"--set {assignment} has no value; write --set {key or 'group.name'}=value")
    if key not in known_settings():
        raise SettingError(f"there is no setting {key!r}; did you mean {nearest(key, known_settings())!r}?")
    return key, text.strip()


def parse_value(key: str, text: str) -> Any:
    """The value that `text` stands for, by the type of the setting `key`."""
    group, name = key.split(".")
    hint = typing.get_type_hints(GROUPS[group])[name]
    if isinstance(hint, types.GenericAlias):
        item = typing.get_args(hint)[0]
        inside = text[1:-1] if "," in text and (text[0], text[-1]) in (("[", "]"), ("(", ")")) else text
        return tuple(_parse_scalar(key, item, part.strip()) for part in inside.split(",") if part.strip())
    return _parse_scalar(key, hint, text)


def _parse_scalar(key: str, kind: type[Any], text: str) -> Any:
    words = {int: "a whole number", float: "a number"}
    if kind is str:
        return text
    try:
        return kind(text)
    except ValueError:
        raise SettingError(f"{key} is {text!r}; write {words[kind]}, for example --set {key}=1") from None
