"""Whole sweeps through the command line: real Ray, real DeepSpeed, a real MLflow store."""

import json
from pathlib import Path

import mlflow
import pytest

from tests.cli.command_line import Command, small_sweep
from tests.cli.stores import children, runs

VALUES = ("--set", "sweep.values=0.1,1e38", "--set", "trial.max_skipped=2")
"""The second sigma overflows in every step: its trial fails at the third."""
DIAGNOSED = ("--set", "eval.diagnostic_windows=1", "--set", "eval.diagnostics=state_statistics")
FLAGS = small_sweep("--out", "out", *VALUES, *DIAGNOSED)
REASON = "NonFiniteStep: 3 steps in a row, up to step 3, were not finite and were skipped; at the last one the loss is"


@pytest.mark.ray
@pytest.mark.timeout(600)
def test_a_sweep_with_a_failing_trial_finishes_the_others_and_continues(run_command: Command, tmp_path: Path) -> None:
    first = run_command(*FLAGS)
    assert first.returncode == 3, first.stderr
    assert "it is tried again" not in first.stderr, "the same seeds would fail again"
    assert f"failed: random_noise 1e+38 (seed 0): {REASON} not finite" in first.stdout
    for word in ("base", "zero", "random_noise 0.1", "state_passing", "comparison.png", "mlflow ui"):
        assert word in first.stdout
    assert "Traceback" not in first.stderr + first.stdout

    kept = children(tmp_path)
    assert {name: run.info.status for name, run in kept.items()} == {
        "base": "FINISHED",
        "zero": "FINISHED",
        "random_noise 0.1": "FINISHED",
        "random_noise 1e+38": "FAILED",
        "state_passing": "FINISHED",
    }
    assert kept["random_noise 1e+38"].data.tags["status.reason"].startswith(REASON)
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    run = kept["state_passing"]
    curve = client.get_metric_history(run.info.run_id, "ppl_by_position")
    assert [point.step for point in curve][-1] == 1024 and all(point.value > 1 for point in curve)
    assert len(client.get_metric_history(run.info.run_id, "train/loss")) == 4
    assert run.data.params["arm"] == "state_passing"
    assert (run.data.params["bank.mode"], run.data.params["bank.shards"]) == ("everything", "1")
    skipped = client.get_metric_history(kept["random_noise 1e+38"].info.run_id, "train/skipped")
    assert [(point.step, point.value) for point in skipped] == [(1, 1.0), (2, 1.0), (3, 1.0)]
    assert [point.step for point in client.get_metric_history(run.info.run_id, "state_statistics/std")][-1] == 1024
    for name in ("skipped", "zeroed_rows", "state_rms"):
        assert len(client.get_metric_history(run.info.run_id, f"train/{name}")) == 4

    summary = json.loads((tmp_path / "out" / "report" / "summary.json").read_text())
    assert len(summary["rows"]) == 4 and len(summary["failed"]) == 1

    # The same command runs only what failed, and makes no second run of anything.
    second = run_command(*FLAGS)
    assert second.returncode == 3, second.stderr
    assert "4 of 5 trials are finished" in second.stderr and "zero: started" not in second.stderr
    assert {name: run.info.run_id for name, run in children(tmp_path).items()} == {
        name: run.info.run_id for name, run in kept.items()
    }
    assert len([run for run in runs(tmp_path) if "mlflow.parentRunId" not in run.data.tags]) == 1
    assert not [run for run in runs(tmp_path) if run.info.status == "RUNNING"]
