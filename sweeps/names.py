"""What trials are called: their arm, the values that belong to its name, the swept value, and the group they are in."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sweeps.trials import Trial
from workers.arms import ARMS
from workers.settings import TRAINED_BASE, TrialConfig


@dataclass(frozen=True, kw_only=True)
class ArmName:
    """What trials share that differ in the seed only: a row of the table, a line of the figure."""

    label: str
    """The group, the arm, the values that always belong to its name, and the swept one: `random_noise 0.03`."""
    arm: str
    value: float | None
    """The value that the sweep varies, where the arm uses it."""
    group: str = ""
    """Trials of one group are compared with one another; empty where the sweep has one group only."""

    def as_json(self) -> dict[str, Any]:
        """For the plan's JSON."""
        return asdict(self)


def arm_names(
    trials: Sequence[Trial], *, varies: str = "", named: Sequence[str] = (), facets: Sequence[str] = ()
) -> list[ArmName]:
    """The name of each trial.

    Args:
        trials: of one sweep.
        varies: the setting whose value is swept; it belongs to the names of the trials that use it.
        named: further settings whose values belong to the names of the trials that use them.
        facets: settings that make the groups; one of which all trials have the same value makes none.
    """
    parting = [one for one in facets if len({_value(trial.config, one) for trial in trials}) > 1]
    return [_arm_name(trial, varies, named, parting) for trial in trials]


def _arm_name(trial: Trial, varies: str, named: Sequence[str], facets: Sequence[str]) -> ArmName:
    config = trial.config
    group = " ".join(_word(_value(config, facet)) for facet in facets)
    settings = [f"intervention.{one}" for one in ARMS[config.arm].variant]
    settings += [one for one in (*named, varies) if one and one not in settings and _uses(trial, one)]
    words = [trial.row, *(_word(_value(config, setting)) for setting in settings)]
    label = " ".join([*([group] if group else []), *words])
    value = float(_value(config, varies)) if varies and _uses(trial, varies) else None
    return ArmName(label=label, arm=trial.row, value=value, group=group)


def _uses(trial: Trial, setting: str) -> bool:
    """Whether the setting can change what the trial shows."""
    group, _, name = setting.partition(".")
    config = trial.config
    if group == "intervention":
        return any(name in arm.settings for arm in (ARMS[config.arm], *config.drawing_arms))
    if group in ("trial", "optimizer"):
        return trial.row != "base" and ARMS[config.arm].trains
    return setting != "base.step" or config.base.checkpoint == TRAINED_BASE


def _value(config: TrialConfig, setting: str) -> Any:
    group, _, name = setting.partition(".")
    return getattr(getattr(config, group), name)


def _word(value: object) -> str:
    """A setting's value as part of a name: `0.03`, `head`, `zero+state_passing`."""
    if isinstance(value, tuple):
        return "+".join(map(str, value))
    return f"{value:.12g}" if isinstance(value, float) else str(value)
