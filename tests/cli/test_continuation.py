"""The same folder with another number of workers: refused before anything starts, in a dry run too."""

import json
from pathlib import Path

import pytest

from storage.checkpoints import partial_folder, publish
from tests.cli.command_line import Command, small_sweep
from workers.trial_files import CHECKPOINTS, checkpoint_layout

SWEEP = small_sweep("--out", "out", "--set", "sweep.values=0.1")


@pytest.mark.parametrize("flags", [["--dry-run"], []], ids=["dry run", "run"])
def test_another_number_of_workers_is_one_sentence_and_exit_code_2(
    flags: list[str], run_command: Command, tmp_path: Path
) -> None:
    planned = json.loads(run_command(*SWEEP, "--dry-run", "--json").stdout)["trials"]
    (trial,) = (trial for trial in planned if trial["arm"] == "state_passing")
    root = tmp_path / "out" / "trials" / f"state_passing-{trial['identity'][:8]}" / CHECKPOINTS
    partial_folder(root, 2).mkdir(parents=True)
    publish(root, 2, trial["identity"], checkpoint_layout(workers=2, zero_stage=1))
    (tmp_path / "out" / ".lock").touch()  # an unfinished sweep's folder, whose plan could not be read

    refused = run_command(*SWEEP, *flags, timeout=60)
    assert refused.returncode == 2 and refused.stdout == "" and refused.stderr.count("\n") == 1, refused.stderr
    for words in ("state_passing cannot go on", "step 2", "trial.workers=2", "not trial.workers=1", "--fresh"):
        assert words in refused.stderr
    assert not (tmp_path / "mlflow.db").exists(), "nothing has started"
