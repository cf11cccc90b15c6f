"""The plan of a sweep: its trials with identity, needs and expected time, known before anything heavy is imported."""

import shlex
from collections.abc import Sequence
from dataclasses import replace

from models.content import check_checkpoint, content_hash
from models.errors import ModelError
from models.hub import cached_snapshot
from models.shipped import checkpoint_folder
from storage.documents import check_files, data_content_hash
from storage.errors import StorageError
from storage.hub import described, is_known, pinned_data
from storage.tokens import check_tokenizer
from sweeps.bases import Commits, base_commits, lies_on_hub, pinned, to_fetch
from sweeps.listing import check_start, listed_trials
from sweeps.names import arm_names
from sweeps.planned import PlannedTrial, SweepPlan
from sweeps.registry import NamedSweep, Values, get_sweep
from sweeps.settings import SettingError, build_settings, check_choices
from sweeps.text_to_fetch import text_to_fetch
from sweeps.trials import Trial
from workers.arms import ARMS
from workers.settings import FRESH_BASE, TrialConfig, trial_identity
from workers.shapes import model_dims


def make_plan(name: str, preset: str, assignments: list[str], seeds: int, *, to_show: bool = False) -> SweepPlan:
    """Resolve and check everything that can be checked without torch, ray and mlflow. Raises SettingError.

    Bases on the hub are fetched, and branches of datasets and tokenizers there become commits. With `to_show` nothing
    is, and what is not here is no error: the plan names it in `fetches`, and its identities rest on names in place of
    contents.
    """
    sweep = get_sweep(name)
    if seeds < 1:
        raise SettingError(f"--seeds is {seeds}; write a whole number of at least 1")
    settings = build_settings(*_of_stage(sweep, preset, assignments), sweep.varies, sweep.fixed)
    check_choices(sweep, settings)
    if settings.base.step and sweep.varies != "base.step":
        raise SettingError("base.step chooses among models that training_tokens keeps of its base; leave it out here")
    first = settings.trial.seed
    try:
        if not to_show:
            # Asked once: what a branch of the Hub stands for must not change between two trials.
            settings = replace(settings, data=pinned_data(settings.data))
        trials = listed_trials(sweep, settings, list(range(first, first + seeds)))
        configs = [trial.config for trial in trials]
        commits = base_commits(configs, fetch=not to_show)
        planned = _planned(sweep, trials, seeds, text_hash(configs[0]), commits, shown_only=to_show)
    except SettingError:
        raise
    except (ModelError, StorageError, ValueError, OSError, RuntimeError) as error:
        raise SettingError(str(error)) from error
    words = ["python", "-m", "sweeps.run", name]
    words += [] if preset == "demo" else ["--preset", preset]
    words += [] if seeds == 1 else ["--seeds", str(seeds)]
    words += [word for assignment in assignments for word in ("--set", assignment)]
    return SweepPlan(
        sweep=sweep,
        preset=preset,
        settings=settings,
        trials=planned,
        command=shlex.join(words),
        fetches=(*to_fetch(configs, commits), *text_to_fetch(configs[0].data)),
        commits=commits,
    )


def _of_stage(sweep: NamedSweep, preset: str, assignments: list[str]) -> tuple[Values, list[str]]:
    """The values of the preset at the chosen stage, the last one named, and the other assignments."""
    parts = [assignment.partition("=") for assignment in assignments]
    stages = [value.strip() for key, equals, value in parts if equals and key.strip() == "sweep.stage"]
    others = [
        text
        for text, (key, equals, _) in zip(assignments, parts, strict=True)
        if not equals or key.strip() != "sweep.stage"
    ]
    return sweep.preset(preset, stages[-1] if stages else ""), others


def _planned(
    sweep: NamedSweep, trials: Sequence[Trial], seeds: int, data_hash: str, commits: Commits, *, shown_only: bool
) -> tuple[PlannedTrial, ...]:
    names = arm_names(trials, varies=sweep.varies, named=sweep.named, facets=sweep.facets)
    planned: list[PlannedTrial] = []
    by_trial: dict[int, PlannedTrial] = {}
    for trial, name in zip(trials, names, strict=True):
        config, base = pinned(trial.config, commits), None
        if trial.base is not None:
            if id(trial.base) not in by_trial:
                raise SettingError(
                    f"{name.label} starts from a trial that the sweep {sweep.name} does not list before it"
                )
            check_start(trial, name.label)
            base = by_trial[id(trial.base)].identity
            base_hash = trained_hash(base)
        else:
            base_hash = checkpoint_hash(config, shown_only=shown_only)
        repeated = seeds > 1 and trial.row != "base" and ARMS[trial.config.arm].trains
        one = PlannedTrial(
            arm=name,
            label=f"{name.label} seed {trial.config.trial.seed}" if repeated else name.label,
            config=config,
            identity=trial_identity(config, base_hash, data_hash),
            base=base,
        )
        planned.append(one)
        by_trial[id(trial)] = one
    _refuse_twins(sweep.name, planned)
    return tuple(planned)


def trained_hash(base: str) -> str:
    """What stands for the content of a base that the trial of this identity is yet to train: its recipe."""
    return f"trained:{base}"


def _refuse_twins(sweep: str, trials: Sequence[PlannedTrial]) -> None:
    labels: set[str] = set()
    by_identity: dict[str, str] = {}
    for trial in trials:
        if trial.label in labels:
            raise SettingError(
                f"two trials of the sweep {sweep} are both called {trial.label!r}; their results would be mixed up"
            )
        if trial.identity in by_identity:
            raise SettingError(
                f"the trials {by_identity[trial.identity]!r} and {trial.label!r} of the sweep {sweep} differ in "
                "nothing that changes a number; leave one of them out"
            )
        labels.add(trial.label)
        by_identity[trial.identity] = trial.label


def checkpoint_hash(config: TrialConfig, *, shown_only: bool) -> str:
    """Content hash of the checkpoint that a trial starts from, after checking that it fits its model.

    With `shown_only` that of a checkpoint on the hub that is not here is its name.
    """
    base = config.base
    if base.checkpoint == FRESH_BASE:
        return ""
    if shown_only and lies_on_hub(base) and cached_snapshot(base.checkpoint, base.revision) is None:
        return f"named:{base.checkpoint}"
    folder = checkpoint_folder(base.checkpoint, base.revision)
    check_checkpoint(folder, model_dims(config))
    return content_hash(folder)


def text_hash(config: TrialConfig) -> str:
    """Content hash of text and tokenizer, after checking both; their names, where only the Hub knows the content."""
    if not is_known(config.data):
        return f"named:{described(config.data)}:{config.data.field}:{config.data.tokenizer}"
    check_files(config.data)
    check_tokenizer(config.data)
    return data_content_hash(config.data)
