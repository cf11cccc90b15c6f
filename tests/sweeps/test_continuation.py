from pathlib import Path

import pytest

from storage.checkpoints import partial_folder, publish
from sweeps.continuation import check_continuation
from sweeps.folder import SweepFolder
from sweeps.plan import make_plan
from sweeps.planned import SweepPlan
from sweeps.settings import SettingError
from workers.trial_files import CHECKPOINTS, RESULT, checkpoint_layout


def plan(*assignments: str) -> SweepPlan:
    return make_plan("noise_scale", "demo", ["base.checkpoint=fresh", "sweep.values=0.1", *assignments], 1)


def leave_checkpoint(root: Path, label: str, workers: int, zero_stage: int = 1) -> Path:
    """A checkpoint of step 50 in the folder of the trial `label`; returns the trial's folder."""
    (trial,) = (trial for trial in plan().trials if trial.label == label)
    folder = SweepFolder(root, plan()).trial(trial)
    partial = partial_folder(folder / CHECKPOINTS, 50)
    partial.mkdir(parents=True)
    (partial / "loop.json").write_text("{}")
    publish(folder / CHECKPOINTS, 50, trial.identity, checkpoint_layout(workers, zero_stage))
    return folder


def test_a_new_folder_and_checkpoints_of_the_same_layout_are_gone_on_with(tmp_path: Path) -> None:
    check_continuation(plan(), tmp_path / "none")
    leave_checkpoint(tmp_path, "zero", workers=2)
    check_continuation(plan("trial.workers=2"), tmp_path)


def test_another_number_of_workers_is_refused_with_trial_step_and_both_numbers(tmp_path: Path) -> None:
    leave_checkpoint(tmp_path, "state_passing", workers=2)
    with pytest.raises(SettingError) as refused:
        check_continuation(plan("trial.workers=4"), tmp_path)
    sentence = str(refused.value)
    for word in ("state_passing cannot go on", "step 50", "trial.workers=2", "trial.workers=4", "--fresh"):
        assert word in sentence
    assert "\n" not in sentence


def test_another_zero_stage_is_refused(tmp_path: Path) -> None:
    leave_checkpoint(tmp_path, "random_noise 0.1", workers=1, zero_stage=1)
    with pytest.raises(SettingError, match="trial.zero_stage=1, and only that can go on from it, not trial.zero_stage"):
        check_continuation(plan("trial.zero_stage=3"), tmp_path)


def test_threads_micro_batches_and_shards_may_change(tmp_path: Path) -> None:
    leave_checkpoint(tmp_path, "state_passing", workers=1)
    check_continuation(plan("trial.threads=2", "trial.micro_rows=4", "bank.shards=3"), tmp_path)


def test_what_a_finished_trial_left_behind_does_not_matter(tmp_path: Path) -> None:
    (leave_checkpoint(tmp_path, "state_passing", workers=2) / RESULT).write_text("{}")
    check_continuation(plan(), tmp_path)
