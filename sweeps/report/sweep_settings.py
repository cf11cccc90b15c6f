"""The settings of a sweep's trials: which differ between its rows, and which they share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workers.arms import ARMS, parts_of

_OF_TRAINING = ("trial.steps", "trial.rows", "trial.micro_rows", "trial.checkpoint_every", "trial.max_skipped")
NOT_USED = "-"


@dataclass(frozen=True)
class SettingTables:
    """Settings by name, `group.name`, as text."""

    shared: dict[str, str]
    names: list[str]
    """Of the settings that differ."""
    differing: dict[str, list[str]]
    """By row label, the values of `names`; `-`: the trial does not use it, several: they differ between its seeds."""


def setting_tables(trials: Sequence[Mapping[str, Any]]) -> SettingTables:
    """What the trials of a plan (`sweep.json`) are set to."""
    values: dict[str, dict[str, list[str]]] = {}
    for trial in trials:
        for name, text in _settings(trial["config"]).items():
            found = values.setdefault(name, {}).setdefault(trial["name"]["label"], [])
            if text not in found:
                found.append(text)
    labels = list(dict.fromkeys(trial["name"]["label"] for trial in trials))
    used = {
        name: {text for texts in rows.values() for text in texts if text != NOT_USED} for name, rows in values.items()
    }
    names = [name for name, texts in used.items() if len(texts) > 1]
    shared = {name: next(iter(texts)) for name, texts in used.items() if len(texts) == 1}
    return SettingTables(shared, names, {label: [", ".join(values[name][label]) for name in names] for label in labels})


def _settings(config: Mapping[str, Any]) -> dict[str, str]:
    arm = config["arm"]
    drawing = (ARMS[arm], *parts_of(arm, tuple(config["intervention"]["mixture"])))
    used = {f"intervention.{name}" for one in drawing for name in one.settings}
    found = {}
    for group, settings in config.items():
        if isinstance(settings, Mapping):
            for name, value in settings.items():
                key = f"{group}.{name}"
                is_idle = (group == "intervention" and key not in used) or (
                    not ARMS[arm].trains and (group in ("optimizer", "bank") or key in _OF_TRAINING)
                )
                found[key] = NOT_USED if is_idle else _text(value)
    return found


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:.12g}" if isinstance(value, float) else str(value)
