"""The plan of a sweep: its trials with identity, needs and expected time, known before anything heavy is imported."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.architecture import ModelDims
from models.content import check_checkpoint, content_hash
from models.errors import ModelError
from models.shipped import checkpoint_folder
from storage.documents import check_files, data_content_hash
from storage.errors import StorageError
from storage.tokens import check_tokenizer
from sweeps.expected_time import expected_seconds
from sweeps.registry import NamedSweep, get_sweep
from sweeps.settings import SettingError, Settings, build_settings
from workers.arms import ARMS, check_arm
from workers.bank_plan import BankPlan, plan_bank
from workers.settings import FRESH_BASE, TrialConfig, trial_identity
from workers.shapes import model_dims


@dataclass(frozen=True, kw_only=True)
class ArmName:
    """What trials share that differ in the seed only: a row of the table, a line of the figure."""

    label: str
    """The arm, the values that always belong to its name, and the swept one: for example `random_noise 0.03`."""
    arm: str
    value: float | None
    """The value that the sweep varies, where the arm uses it."""


@dataclass(frozen=True, kw_only=True)
class PlannedTrial:
    """One trial as it will run."""

    arm: ArmName
    label: str
    """The arm's label, with the seed where there are several."""
    config: TrialConfig
    identity: str

    @property
    def name(self) -> str:
        """Folder name: the arm, its value and the start of the identity."""
        return f"{self.label.replace(' ', '-')}-{self.identity[:8]}"

    @property
    def dims(self) -> ModelDims:
        """Dimensions of the model."""
        return model_dims(self.config)

    @property
    def cpus(self) -> int:
        """CPUs that the trial keeps busy."""
        return self.config.trial.workers * self.config.trial.threads

    @property
    def bank(self) -> BankPlan | None:
        """What it asks of the state bank; None for an arm that uses none."""
        return plan_bank(self.config)

    @property
    def expected_seconds(self) -> float:
        """Rough duration on one CPU thread of this kind of machine, see `sweeps.expected_time`."""
        return expected_seconds(self.config, self.dims.parameters())

    def as_json(self) -> dict[str, Any]:
        """What `--dry-run --json` shows of the trial."""
        return {
            "arm": self.config.arm,
            "seed": self.config.trial.seed,
            "label": self.label,
            "identity": self.identity,
            "config": self.config.to_dict(),
            "resources": {"workers": self.config.trial.workers, "cpus": self.cpus},
            "bank": self.bank.as_json() if self.bank else None,
            "expected_seconds": round(self.expected_seconds, 1),
        }


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """A named sweep with its settings resolved into trials."""

    sweep: NamedSweep
    preset: str
    settings: Settings
    trials: tuple[PlannedTrial, ...]

    @property
    def identity(self) -> str:
        """Hash of the sweep's name and its trials' identities."""
        text = "\n".join([self.sweep.name, *sorted(trial.identity for trial in self.trials)])
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def default_folder(self) -> Path:
        """`runs/<sweep>-<identity8>`."""
        return Path("runs") / f"{self.sweep.name}-{self.identity[:8]}"

    def concurrency(self, cpus: int, gpus: int = 0) -> int:
        """Trials that run at once on so many CPUs and GPUs."""
        at_once = cpus // max(trial.cpus for trial in self.trials)
        if gpus and self.settings.trial.device != "cpu":
            at_once = min(at_once, gpus // self.settings.trial.workers)
        return max(1, at_once)


def make_plan(name: str, preset: str, assignments: list[str], seeds: int) -> SweepPlan:
    """Resolve and check everything that can be checked without torch, ray and mlflow. Raises SettingError."""
    sweep = get_sweep(name)
    if preset not in sweep.presets:
        raise SettingError(f"the sweep {name} has no preset {preset!r}; it has {', '.join(sweep.presets)}")
    if seeds < 1:
        raise SettingError(f"--seeds is {seeds}; write a whole number of at least 1")
    settings = build_settings(sweep.presets[preset], assignments, sweep.varies, sweep.fixed)
    if settings.sweep.values and not sweep.varies:
        raise SettingError(f"sweep.values is set, but the sweep {name} varies no value; leave it out")
    _check_chosen_arms(sweep, settings.sweep.arms)
    first = settings.trial.seed
    try:
        configs = sweep.trials(settings, list(range(first, first + seeds)))
        base_hash, data_hash = _content_hashes(configs[0])
    except SettingError:
        raise
    except (ModelError, StorageError, ValueError, OSError, RuntimeError) as error:
        raise SettingError(str(error)) from error
    trials = tuple(
        PlannedTrial(
            arm=arm_name(config, sweep.varies),
            label=trial_label(config, sweep.varies, several_seeds=seeds > 1),
            config=config,
            identity=trial_identity(config, base_hash, data_hash),
        )
        for config in configs
    )
    labels = [trial.label for trial in trials]
    for label in labels:
        if labels.count(label) > 1:
            raise SettingError(
                f"two trials of the sweep {name} are both called {label!r}; their results would be mixed up"
            )
    return SweepPlan(sweep=sweep, preset=preset, settings=settings, trials=trials)


def _check_chosen_arms(sweep: NamedSweep, chosen: tuple[str, ...]) -> None:
    if chosen and not sweep.arms:
        raise SettingError(f"sweep.arms is set, but the sweep {sweep.name} has no choice of arms; leave it out")
    for arm in chosen:
        try:
            check_arm(arm, sweep.arms)
        except ValueError as error:
            raise SettingError(f"sweep.arms: {error}") from error
    if len(set(chosen)) != len(chosen):
        raise SettingError(f"sweep.arms has an arm twice: {', '.join(chosen)}; write each once")


def _content_hashes(config: TrialConfig) -> tuple[str, str]:
    """Content hashes of base and text, after checking that both fit."""
    check_files(config.data)
    check_tokenizer(config.data)
    base_hash = ""
    if config.base.checkpoint != FRESH_BASE:
        folder = checkpoint_folder(config.base.checkpoint)
        check_checkpoint(folder, model_dims(config))
        base_hash = content_hash(folder)
    return base_hash, data_content_hash(config.data)


def arm_name(config: TrialConfig, varies: str) -> ArmName:
    """The arm, with the values that belong to its name and the one that the sweep varies, where the arm uses it."""
    arms = (ARMS[config.arm], *config.drawing_arms)
    named = list(ARMS[config.arm].variant)
    group, _, name = varies.partition(".")
    is_swept = group == "intervention" and any(name in arm.settings for arm in arms)
    if is_swept and name not in named:
        named.append(name)
    words = [config.arm, *(_word(getattr(config.intervention, setting)) for setting in named)]
    value = getattr(config.intervention, name) if is_swept else None
    return ArmName(label=" ".join(words), arm=config.arm, value=value)


def _word(value: object) -> str:
    """A setting's value as part of a name: `0.03`, `head`, `zero+state_passing`."""
    if isinstance(value, tuple):
        return "+".join(value)
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def trial_label(config: TrialConfig, varies: str, *, several_seeds: bool) -> str:
    """The arm's label, and the seed where there are several and the arm trains."""
    label = arm_name(config, varies).label
    return f"{label} seed {config.trial.seed}" if several_seeds and ARMS[config.arm].trains else label
