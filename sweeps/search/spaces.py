"""What a search may choose: arms, and for each arm the settings with their ranges. Imports no Optuna.

A space is plain data: the dry run prints it, and the study's name holds its hash. `Space.suggest` walks over it with an
Optuna trial, define-by-run: first the arm, then the settings that this arm uses.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from sweeps.settings import SettingError, Settings, nearest
from workers.settings import TrialConfig

SPACES = ("noise", "passing", "full")
DIGITS = 4
"""Significant digits of a suggested number: what is written in a table is exactly what ran."""
_NOISE, _PASSING = ("random_noise", "fitted_noise"), ("state_passing", "tbtt")
_FARTHER = 10.0
"""The peak rate is searched from that of the settings divided by this to that times this."""


class Suggests(Protocol):
    """The part of an Optuna trial that a space needs."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float: ...
    def suggest_categorical(self, name: str, choices: Any) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One setting with its range or its choices."""

    setting: str
    """`group.name`."""
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    """Whether the range is searched by orders of magnitude."""
    choices: tuple[Any, ...] = ()
    """In place of a range."""
    arms: tuple[str, ...] = ()
    """The arms that use it; empty: every arm."""

    def suggest(self, trial: Suggests) -> Any:
        """A value for this trial."""
        if self.choices:
            return trial.suggest_categorical(self.setting, list(self.choices))
        return rounded(trial.suggest_float(self.setting, self.low, self.high, log=self.log))

    @property
    def range(self) -> str:
        """The range or the choices as text."""
        if self.choices:
            return ", ".join(map(str, self.choices))
        return f"{self.low:g} to {self.high:g}{', by orders of magnitude' if self.log else ''}"

    def ends(self) -> tuple[Any, ...]:
        """Its choices, or the two ends of its range."""
        return self.choices or (self.low, self.high)


@dataclass(frozen=True, kw_only=True)
class Space:
    """The settings that a search chooses, all others are those of the command."""

    name: str
    arms: tuple[str, ...]
    parameters: tuple[Parameter, ...]

    def suggest(self, trial: Suggests) -> dict[str, Any]:
        """The arm as `arm` and the suggested settings as `group.name`."""
        arm = trial.suggest_categorical("arm", list(self.arms)) if len(self.arms) > 1 else self.arms[0]
        return {"arm": arm} | {one.setting: one.suggest(trial) for one in self.of_arm(arm)}

    def of_arm(self, arm: str) -> list[Parameter]:
        """The parameters that trials of this arm have."""
        return [one for one in self.parameters if not one.arms or arm in one.arms]

    def as_json(self) -> dict[str, Any]:
        """Everything that makes the space what it is."""
        return asdict(self)


def make_space(name: str, settings: Settings) -> Space:
    """The space of that name around these settings. Raises SettingError."""
    if name not in SPACES:
        raise SettingError(
            f"there is no space {name!r}; did you mean {nearest(name, list(SPACES))!r}? Write --space full"
        )
    _check_settings(name, settings)
    space = {"noise": _noise, "passing": _passing, "full": _full}[name](settings)
    arms = tuple(arm for arm in space.arms if not settings.sweep.arms or arm in settings.sweep.arms)
    if len(arms) < len(settings.sweep.arms) or not arms:
        raise SettingError(f"sweep.arms may choose from {', '.join(space.arms)} in the space {name}")
    kept = [one for one in space.parameters if not one.arms or set(one.arms) & set(arms)]
    return replace(space, arms=arms, parameters=tuple(kept))


def _check_settings(space: str, settings: Settings) -> None:
    contexts = settings.search.contexts
    for setting, value in (("sweep.sizes", settings.sweep.sizes), ("search.contexts", contexts)):
        if value and space != "full":
            raise SettingError(f"{setting} is set, but the space {space} does not choose it; leave it out")
    if len(set(contexts)) != len(contexts):
        raise SettingError(f"search.contexts has a value twice: {', '.join(map(str, contexts))}; write each once")
    if not settings.optimizer.peak_lr:
        raise SettingError("optimizer.peak_lr is 0.0, but a search chooses rates around it; write a number above 0")


def _noise(settings: Settings) -> Space:
    return Space(name="noise", arms=_NOISE, parameters=(_sigma(), _beta()))


def _passing(settings: Settings) -> Space:
    parameters = (
        _reset_probability(),
        Parameter(setting="intervention.reset_by", choices=("row", "batch"), arms=_PASSING),
        Parameter(setting="intervention.passing", choices=("in_place", "permuted"), arms=("state_passing",)),
        _peak_rate(settings),
    )
    return Space(name="passing", arms=_PASSING, parameters=parameters)


def _full(settings: Settings) -> Space:
    sizes = settings.sweep.sizes or (settings.model.size,)
    contexts = settings.search.contexts or _contexts_around(settings)
    parameters = [_sigma(), _beta(), _reset_probability(), _peak_rate(settings), _warmup_share(settings)]
    parameters += (
        [Parameter(setting="trial.context", choices=contexts)] if contexts != (settings.trial.context,) else []
    )
    parameters += [Parameter(setting="model.size", choices=sizes)] if sizes != (settings.model.size,) else []
    return Space(name="full", arms=("zero", *_NOISE, *_PASSING), parameters=tuple(parameters))


def _sigma() -> Parameter:
    return Parameter(setting="intervention.sigma", low=1e-3, high=1.0, log=True, arms=("random_noise",))


def _beta() -> Parameter:
    # At 1 the old mean and variance would stay for ever.
    return Parameter(setting="intervention.beta", low=0.0, high=0.99, arms=("fitted_noise",))


def _reset_probability() -> Parameter:
    return Parameter(setting="intervention.reset_probability", low=0.0, high=1.0, arms=_PASSING)


def _peak_rate(settings: Settings) -> Parameter:
    peak = settings.optimizer.peak_lr
    return Parameter(setting="optimizer.peak_lr", low=rounded(peak / _FARTHER), high=rounded(peak * _FARTHER), log=True)


def _warmup_share(settings: Settings) -> Parameter:
    optimizer = settings.optimizer
    most = 1 - optimizer.decay_share if optimizer.schedule == "wsd" else 0.5
    return Parameter(setting="optimizer.warmup_share", low=0.01, high=min(0.5, rounded(most)))


def _contexts_around(settings: Settings) -> tuple[int, ...]:
    """From half of the context to four times, as far as the tokens of a step divide and the windows reach beyond."""
    context, found = settings.trial.context, []
    for candidate in (context // 2, context, 2 * context, 4 * context):
        if 0 < candidate < settings.eval.length and (settings.trial.rows * context) % candidate == 0:
            found.append(candidate)
    return tuple(found)


def configure(settings: Settings, suggestion: Mapping[str, Any]) -> TrialConfig:
    """The trial that a suggestion stands for. Raises ValueError where the settings do not go together.

    What has to follow, follows: the lowest rate the peak rate, and rows the context, so that a step has equal tokens.
    """
    changes = {name: value for name, value in suggestion.items() if name != "arm"}
    optimizer, trial = settings.optimizer, settings.trial
    if "optimizer.peak_lr" in changes:
        changes["optimizer.min_lr"] = rounded(changes["optimizer.peak_lr"] * optimizer.min_lr / optimizer.peak_lr)
    if "trial.context" in changes:
        context = changes["trial.context"]
        rows, left = divmod(trial.rows * trial.context, context)
        if left or not rows:
            raise ValueError(
                f"search.contexts holds {context}, which does not divide the {trial.rows * trial.context} tokens of a "
                "step (trial.rows x trial.context); write divisors of it"
            )
        changes["trial.rows"] = rows
        changes["trial.micro_rows"] = max(1, trial.micro_rows * trial.context // context) if trial.micro_rows else 0
    return settings.trial_config(suggestion["arm"], seed=trial.seed, changes=changes)


def rounded(value: float) -> float:
    """The value with `DIGITS` significant digits."""
    return float(f"{value:.{DIGITS}g}")
