"""All settings of a sweep, and how `--set group.name=value` changes them.

Every mistake is a `SettingError`: one sentence that says what is wrong, where, and what to write instead.
"""

import dataclasses
import difflib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from models.settings import ModelSettings
from storage.settings import BankSettings, DataSettings, TrackingSettings
from sweeps.gpu_settings import GpuSettings
from sweeps.places import PUBLISHED_BASES, absolute_base, absolute_data, default_base
from sweeps.setting_values import checked_value, read_value
from workers.arms import check_arm
from workers.setting_checks import require
from workers.settings import (
    TRIAL_GROUPS,
    BaseSettings,
    EvalSettings,
    InterventionSettings,
    OptimizerSettings,
    TrialConfig,
    TrialSettings,
)

if TYPE_CHECKING:
    from sweeps.registry import NamedSweep

SEARCH = "search"
"""Name of the sweep whose trials are not listed but suggested, see `sweeps.search`."""


class SettingError(ValueError):
    """A sweep, flag or setting that makes no sense; the command line prints it and exits with 2."""


@dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """What the sweep itself varies."""

    values: tuple[float, ...] = ()
    """Values of the setting that the sweep varies; empty: the sweep's own list."""
    arms: tuple[str, ...] = ()
    """Arms to run, of those the sweep has; empty: all of them. The base and the control always run."""
    sizes: tuple[str, ...] = ()
    """Sizes of the model, in sweeps that compare several; empty: `model.size`."""
    architectures: tuple[str, ...] = ()
    """Architectures, in sweeps that compare several; empty: `model.architecture`."""
    stage: str = ""
    """`pretrain` or `posttrain`, in sweeps that have both; empty: the first that the sweep names."""


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """How a search samples and stops; only the sweep `search` has a use for them."""

    contexts: tuple[int, ...] = ()
    """Training windows that the space `full` chooses from, at equal tokens per step; empty: from half of
    `trial.context` to four times."""
    seed: int = 0
    """Of the sampler. With one trial at a time the same seed suggests the same trials."""
    reduction: int = 3
    """At each rung of successive halving about one in so many trials goes on; 0: none is stopped early."""

    def __post_init__(self) -> None:
        require(0 <= self.seed < 2**63, "search.seed", self.seed, "a whole number from 0 to below 2^63")
        require(self.reduction == 0 or self.reduction >= 2, "search.reduction", self.reduction, "0, or at least 2")
        require(all(one >= 1 for one in self.contexts), "search.contexts", list(self.contexts), "numbers of at least 1")


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
    search: SearchSettings = field(default_factory=SearchSettings)
    gpu: GpuSettings = field(default_factory=GpuSettings)
    base_is_named: bool = False
    """Whether the preset or the user names `base.checkpoint`: then it stays, whatever model a trial has."""

    def trial_config(self, arm: str, *, seed: int, changes: Mapping[str, Any] | None = None) -> TrialConfig:
        """The trial of one arm and seed, with the settings `group.name` of `changes` changed.

        Where these change the model, the base follows, unless the user has named one.
        """
        values = {"trial.seed": seed, **(changes or {})}
        by_group: dict[str, dict[str, Any]] = {}
        for key, value in values.items():
            group, name = _known(key)
            if group not in TRIAL_GROUPS:
                raise SettingError(f"{key} is no setting of a trial, so that trials cannot differ in it")
            by_group.setdefault(group, {})[name] = _checked(key, value)
        groups = {name: dataclasses.replace(getattr(self, name), **by_group.get(name, {})) for name in TRIAL_GROUPS}
        if groups["model"] != self.model and "base.checkpoint" not in values:
            groups["base"] = dataclasses.replace(groups["base"], checkpoint=self._base_of(groups["model"]))
        groups["base"] = absolute_base(groups["base"])
        return TrialConfig(arm=arm, **groups)

    def _base_of(self, model: ModelSettings) -> str:
        return self.base.checkpoint if self.base_is_named else default_base(model.architecture, model.size)


GROUPS: dict[str, type[Any]] = {
    **TRIAL_GROUPS,
    "tracking": TrackingSettings,
    "sweep": SweepSettings,
    "search": SearchSettings,
    "gpu": GpuSettings,
}


def known_settings() -> list[str]:
    """Names of all settings, `group.name`."""
    return [f"{group}.{one.name}" for group, settings in GROUPS.items() for one in dataclasses.fields(settings)]


def nearest(name: str, known: list[str]) -> str:
    """The known name most like `name`."""
    return difflib.get_close_matches(name, known, n=1, cutoff=0)[0]


def build_settings(
    preset: Mapping[str, Any], assignments: list[str], varies: str, fixed: tuple[str, ...] = ()
) -> Settings:
    """Settings from a preset's values and the `--set` assignments, which win.

    `varies` is the setting that the sweep itself varies, `fixed` are those it gives its trials itself. Where nothing
    says what to start from, it is the model's `default_base`. Paths become absolute. Raises SettingError.
    """
    values = dict(preset)
    own = set()
    for assignment in assignments:
        key, text = _split(assignment)
        if key == varies:
            raise SettingError(f"{key} is what this sweep varies; write --set sweep.values=... instead")
        if key in fixed:
            raise SettingError(f"{key} is what this sweep gives its trials itself; leave it out")
        values[key] = parse_value(key, text)
        own.add(key)
        if key == "sweep.values" and not values[key]:
            raise SettingError("sweep.values is empty; write values, or leave it out for the sweep's own")
    _drop_other_text(values, own)
    groups: dict[str, dict[str, Any]] = {name: {} for name in GROUPS}
    for key, value in values.items():
        group, name = _known(key)
        groups[group][name] = _checked(key, value)
    try:
        model = ModelSettings(**groups["model"])
        is_named = "checkpoint" in groups["base"]
        if not is_named:
            groups["base"]["checkpoint"] = default_base(model.architecture, model.size)
        made = {name: GROUPS[name](**given) for name, given in groups.items()}
        made["data"] = absolute_data(made["data"])
        # A published name stays a name here: the base of another size may have to take its place.
        if is_named and made["base"].checkpoint not in PUBLISHED_BASES.values():
            made["base"] = absolute_base(made["base"])
        return Settings(**made, base_is_named=is_named)
    except SettingError:
        raise
    except ValueError as error:
        raise SettingError(str(error)) from error


def _drop_other_text(values: dict[str, Any], own: set[str]) -> None:
    """Where the user names a text, drop what the preset says of another: its revision means nothing for this one."""
    about_dataset = ["data.dataset_config", "data.dataset_split", "data.revision"]
    dropped: list[str] = []
    if "data.dataset" in own:
        dropped = ["data.files", *about_dataset]
    if "data.files" in own or not values.get("data.dataset", ""):
        dropped += ["data.dataset", *about_dataset, "data.max_tokens"]
    for key in set(dropped) - own:
        values.pop(key, None)


def check_choices(sweep: "NamedSweep", settings: Settings) -> None:
    """Raise SettingError for a choice in `sweep.*` that this sweep does not have, or that names a thing twice."""
    values = {one.name: getattr(settings.sweep, one.name) for one in dataclasses.fields(SweepSettings)}
    offered = {"values": bool(sweep.varies), "arms": bool(sweep.arms), "stage": bool(sweep.stages)}
    offered |= {name: name in sweep.chooses for name in ("sizes", "architectures")}
    if settings.search != SearchSettings() and sweep.name != SEARCH:
        raise SettingError(f"search.* is set, but {sweep.name} is no search; leave it out")
    for name, value in values.items():
        if value and not offered[name]:
            raise SettingError(f"sweep.{name} is set, but the sweep {sweep.name} has no choice of {name}; leave it out")
        if isinstance(value, tuple) and len(set(value)) != len(value):
            raise SettingError(f"sweep.{name} has a value twice: {', '.join(map(str, value))}; write each once")
    for arm in settings.sweep.arms:
        try:
            check_arm(arm, sweep.arms)
        except ValueError as error:
            raise SettingError(f"sweep.arms: {error}") from error


def _split(assignment: str) -> tuple[str, str]:
    key, separator, text = assignment.partition("=")
    key = key.strip()
    if not separator:
        raise SettingError(f"--set {assignment} has no value; write --set {key or 'group.name'}=value")
    _known(key)
    return key, text.strip()


def _known(key: str) -> tuple[str, str]:
    """Group and name of a setting. Raises SettingError that names the nearest one where there is none."""
    if key not in known_settings():
        raise SettingError(f"there is no setting {key!r}; did you mean {nearest(key, known_settings())!r}?")
    group, _, name = key.partition(".")
    return group, name


def type_of(key: str) -> Any:
    """Type of a known setting."""
    group, name = _known(key)
    return typing.get_type_hints(GROUPS[group])[name]


def _checked(key: str, value: Any) -> Any:
    try:
        return checked_value(key, type_of(key), value)
    except ValueError as error:
        raise SettingError(str(error)) from None


def parse_value(key: str, text: str) -> Any:
    """The value that `text` stands for, by the type of the setting `key`."""
    try:
        return read_value(key, type_of(key), text)
    except SettingError:
        raise
    except ValueError as error:
        raise SettingError(str(error)) from None
