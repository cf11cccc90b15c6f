import dataclasses
import math
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow import MlflowClient

from storage.curve_files import read_curve
from storage.errors import StorageError
from storage.measurements import Measurements, read_measurements
from storage.tracking import TrackedRun, Tracker, TrackingError
from tests.curve_makers import make_curve

SWEEP = "1f2e3d4c5b6a"


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with MLflow's tables and no sweep, made once: making the tables takes seconds."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    Tracker(f"sqlite:///{path}")
    return path


@pytest.fixture
def uri(empty_store: Path, tmp_path: Path) -> str:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path}/mlflow.db"


@pytest.fixture
def tracker(uri: str) -> Tracker:
    return Tracker(uri)


@pytest.fixture
def client(uri: str) -> MlflowClient:
    return MlflowClient(uri)


@pytest.fixture
def parent(tracker: Tracker) -> TrackedRun:
    return tracker.open_sweep("noise_scale", SWEEP, {"git": "abc"})


@pytest.fixture
def trial(tracker: Tracker, parent: TrackedRun) -> TrackedRun:
    return open_trial(tracker, parent)


def open_trial(tracker: Tracker, parent: TrackedRun, identity: str = "t1", **params: Any) -> TrackedRun:
    return tracker.open_trial(parent, f"zero {identity}", identity, "zero", params, "#D55E00")


def steps(client: MlflowClient, run: TrackedRun, key: str) -> list[int]:
    return [metric.step for metric in client.get_metric_history(run.run_id, key)]


def test_a_sweep_is_one_parent_run_that_is_continued(tracker: Tracker, client: MlflowClient, uri: str) -> None:
    first = tracker.open_sweep("noise_scale", SWEEP)
    tracker.finish(first, "KILLED", "Ctrl-C")
    again = Tracker(uri).open_sweep("noise_scale", SWEEP)
    assert again.run_id == first.run_id
    stored = client.get_run(first.run_id)
    assert stored.info.status == "RUNNING"
    assert "status.reason" not in stored.data.tags
    assert tracker.open_sweep("noise_scale", "another").run_id != first.run_id


def test_a_trial_is_one_child_run_for_ever(
    tracker: Tracker, parent: TrackedRun, client: MlflowClient, uri: str
) -> None:
    first = open_trial(tracker, parent)
    again = open_trial(Tracker(uri), parent)
    other = open_trial(tracker, parent, "t2")
    assert again.run_id == first.run_id != other.run_id
    tags = client.get_run(first.run_id).data.tags
    assert (tags["mlflow.parentRunId"], tags["trial.identity"], tags["sweep.id"]) == (parent.run_id, "t1", SWEEP)
    assert tags["mlflow.runColor"] == "#D55E00"
    assert len(tracker.runs_of(SWEEP)) == 3


def test_the_same_trial_in_another_sweep_is_another_run(tracker: Tracker, parent: TrackedRun) -> None:
    elsewhere = tracker.open_sweep("noise_scale", "another")
    assert open_trial(tracker, elsewhere).run_id != open_trial(tracker, parent).run_id


def test_parameters_are_flat_and_name_the_arm(tracker: Tracker, parent: TrackedRun, client: MlflowClient) -> None:
    run = open_trial(tracker, parent, trial={"seed": 3})
    assert client.get_run(run.run_id).data.params == {"arm": "zero", "trial.seed": "3"}


def test_a_setting_that_changed_since_the_first_start_becomes_a_tag(
    tracker: Tracker, parent: TrackedRun, client: MlflowClient
) -> None:
    open_trial(tracker, parent, trial={"threads": 1})
    run = open_trial(tracker, parent, trial={"threads": 2, "workers": 1})
    data = client.get_run(run.run_id).data
    assert data.params == {"arm": "zero", "trial.threads": "1", "trial.workers": "1"}
    assert data.tags["now.trial.threads"] == "2"
    assert "now.arm" not in data.tags


def test_training_history_is_continued_without_repetition(
    tracker: Tracker, trial: TrackedRun, client: MlflowClient, uri: str
) -> None:
    history = [{"step": step, "loss": 1.0 / step, "lr": 0.1} for step in range(1, 7)]
    tracker.log_training(trial, history[:4])
    Tracker(uri).log_training(trial, history)
    tracker.log_training(trial, history)
    assert steps(client, trial, "train/loss") == [1, 2, 3, 4, 5, 6]
    assert client.get_run(trial.run_id).data.metrics == {"train/loss": 1.0 / 6, "train/lr": 0.1}


def test_a_batch_cut_short_is_completed(tracker: Tracker, trial: TrackedRun, client: MlflowClient) -> None:
    client.log_metric(trial.run_id, "train/loss", 3.0, step=1)
    tracker.log_training(trial, [{"step": 1, "loss": 3.0, "lr": 0.1}, {"step": 2, "loss": 2.0, "lr": 0.1}])
    assert steps(client, trial, "train/loss") == steps(client, trial, "train/lr") == [1, 2]


def test_training_values_that_are_not_finite_are_counted(
    tracker: Tracker, trial: TrackedRun, client: MlflowClient
) -> None:
    assert tracker.log_training(trial, [{"step": 1, "loss": math.nan}, {"step": 2, "loss": 1.0}]) == 1
    assert steps(client, trial, "train/loss") == [2]
    assert client.get_run(trial.run_id).data.tags["train.nonfinite"] == "1"


def test_a_curve_is_overlaid_by_position_and_kept_whole(
    tracker: Tracker, trial: TrackedRun, client: MlflowClient, tmp_path: Path
) -> None:
    curve = make_curve(noise=0.1)
    tracker.log_curve(trial, curve)
    history = client.get_metric_history(trial.run_id, "ppl_by_position")
    assert {m.step: m.value for m in history} == dict(
        zip(curve.edges[1:].tolist(), curve.perplexity().tolist(), strict=True)
    )
    metrics = client.get_run(trial.run_id).data.metrics
    assert {key: metrics[key] for key in curve.table()} == curve.table()
    kept = client.download_artifacts(trial.run_id, "curves/ppl_by_position.parquet", str(tmp_path))
    assert read_curve(kept).equals(curve)


def test_a_curve_is_one_batch(tracker: Tracker, trial: TrackedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    log_batch: Callable[..., Any] = MlflowClient.log_batch

    def counted(*args: Any, **batch: Any) -> None:
        sizes.append(len(batch["metrics"]))
        log_batch(*args, **batch)

    monkeypatch.setattr(MlflowClient, "log_batch", counted)
    curve = make_curve()
    tracker.log_curve(trial, curve)
    assert sizes == [len(curve.edges) - 1 + len(curve.table())]


def test_the_same_curve_again_changes_nothing_and_another_is_refused(
    tracker: Tracker, trial: TrackedRun, client: MlflowClient
) -> None:
    curve = make_curve()
    tracker.log_curve(trial, curve)
    tracker.log_curve(trial, curve)
    assert steps(client, trial, "ppl_by_position") == curve.edges[1:].tolist()
    assert steps(client, trial, "ppl_8k") == [0]
    with pytest.raises(TrackingError, match="already holds other values of ppl_by_position; start anew with --fresh"):
        tracker.log_curve(trial, make_curve(2.0))


def test_no_value_of_a_curve_is_infinite(tracker: Tracker, trial: TrackedRun, client: MlflowClient) -> None:
    curve = make_curve()
    broken = curve.nll_sum.copy()
    broken[0, -1], broken[1, 4] = np.inf, np.nan
    tracker.log_curve(trial, dataclasses.replace(curve, nll_sum=broken))
    assert len(steps(client, trial, "ppl_by_position")) == len(curve.edges) - 3
    data = client.get_run(trial.run_id).data
    assert all(math.isfinite(value) and value < 1e300 for value in data.metrics.values())
    assert data.tags["ppl_by_position.nonfinite"] == "2"


def test_the_splits_have_curves_of_their_own(tracker: Tracker, trial: TrackedRun, client: MlflowClient) -> None:
    tracker.log_curve(trial, make_curve(1.0), "select/ppl_by_position")
    tracker.log_curve(trial, make_curve(2.0))
    metrics = client.get_run(trial.run_id).data.metrics
    assert metrics["select/ppl_8k"] == make_curve(1.0).table()["ppl_8k"]
    assert metrics["ppl_8k"] == make_curve(2.0).table()["ppl_8k"]


def test_a_failed_trial_keeps_its_reason(tracker: Tracker, trial: TrackedRun, client: MlflowClient) -> None:
    tracker.finish(trial, "FAILED", "out of memory")
    stored = client.get_run(trial.run_id)
    assert (stored.info.status, stored.data.tags["status.reason"]) == ("FAILED", "out of memory")


def test_no_run_stays_open_and_the_parent_ends_last(tracker: Tracker, parent: TrackedRun, client: MlflowClient) -> None:
    done, left = open_trial(tracker, parent, "t1"), open_trial(tracker, parent, "t2")
    tracker.finish(done, "FINISHED")
    other = tracker.open_sweep("noise_scale", "another")
    assert tracker.close_open_runs(SWEEP, "KILLED", "Ctrl-C") == 2
    assert {run.run_id: run.status for run in tracker.runs_of(SWEEP)} == {
        parent.run_id: "KILLED",
        done.run_id: "FINISHED",
        left.run_id: "KILLED",
    }
    ends = {run.run_id: client.get_run(run.run_id).info.end_time for run in (parent, done, left)}
    assert ends[parent.run_id] >= max(ends[done.run_id], ends[left.run_id])
    assert client.get_run(other.run_id).info.status == "RUNNING"
    assert tracker.close_open_runs(SWEEP, "KILLED") == 0


def test_runs_of_lists_the_parent_first(tracker: Tracker, parent: TrackedRun) -> None:
    for number in range(3):
        open_trial(tracker, parent, f"t{number}")
    assert [run.identity for run in tracker.runs_of(SWEEP)] == [None, "t0", "t1", "t2"]
    assert tracker.runs_of("unknown") == []


def test_report_files_lie_beside_the_store(tracker: Tracker, parent: TrackedRun, tmp_path: Path) -> None:
    (tmp_path / "summary.md").write_text("| arm |")
    tracker.log_report(parent, [tmp_path / "summary.md"])
    (kept,) = (tmp_path / "mlartifacts" / "noise_scale").rglob("summary.md")
    assert kept.read_text() == "| arm |"
    assert kept.parent.name == "report"


def test_a_store_locked_for_a_while_costs_waiting_only(uri: str, tracker: Tracker, trial: TrackedRun) -> None:
    with closing(sqlite3.connect(uri[10:], isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.7, other.execute, ["ROLLBACK"])
        timer.start()
        tracker.log_training(trial, [{"step": 1, "loss": 2.0}])
        timer.join()
    assert steps(MlflowClient(uri), trial, "train/loss") == [1]


def test_a_store_that_stays_locked_is_a_tracking_error(uri: str, trial: TrackedRun) -> None:
    impatient = Tracker(uri, patience_s=0.4)
    with closing(sqlite3.connect(uri[10:], isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        started = time.monotonic()
        with pytest.raises(TrackingError, match="locked"):
            impatient.log_curve(trial, make_curve())
        assert time.monotonic() - started < 5
    impatient.log_curve(trial, make_curve())
    assert len(steps(MlflowClient(uri), trial, "ppl_by_position")) == len(make_curve().edges) - 1


def test_a_locked_store_is_refused_before_anything_starts(uri: str) -> None:
    with closing(sqlite3.connect(uri[10:], isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match="is locked by another program"):
            Tracker(uri)


def test_a_store_of_another_kind_is_one_sentence() -> None:
    with pytest.raises(StorageError, match="the tracking store nosuch://host failed: ") as error:
        Tracker("nosuch://host")
    assert "\n" not in str(error.value)


def test_a_deleted_experiment_is_one_sentence(tracker: Tracker, parent: TrackedRun, client: MlflowClient) -> None:
    client.delete_experiment(parent.experiment_id)
    with pytest.raises(TrackingError, match="was deleted; bring it back with `mlflow experiments restore"):
        tracker.open_sweep("noise_scale", SWEEP)


def test_runs_deleted_by_the_user_are_made_anew(tracker: Tracker, parent: TrackedRun, client: MlflowClient) -> None:
    first = open_trial(tracker, parent)
    client.delete_run(first.run_id)
    assert open_trial(tracker, parent).run_id != first.run_id


def measured(*positions: int, **changes: Any) -> Measurements:
    columns = {
        "position": np.array(positions, np.int64),
        "excess_nll": np.linspace(0.25, 1.0, len(positions)),
        "count": np.ones(len(positions), np.int64),
    }
    return dataclasses.replace(Measurements("excess_nll", columns, {"far_excess": 0.5}, {"windows": 2}), **changes)


def test_a_diagnostic_is_a_curve_per_column_beside_its_summary_and_file(
    tracker: Tracker, trial: TrackedRun, client: MlflowClient, tmp_path: Path
) -> None:
    for _ in range(2):
        tracker.log_measurements(trial, measured(128, 256, 512, 1024))
    history = client.get_metric_history(trial.run_id, "excess_nll/excess_nll")
    assert {metric.step: metric.value for metric in history} == {128: 0.25, 256: 0.5, 512: 0.75, 1024: 1.0}
    assert len(history) == 4
    assert client.get_run(trial.run_id).data.metrics == {"excess_nll/excess_nll": 1.0, "excess_nll/far_excess": 0.5}
    kept = client.download_artifacts(trial.run_id, "diagnostics/excess_nll.parquet", str(tmp_path))
    assert read_measurements(kept).equals(measured(128, 256, 512, 1024))
    with pytest.raises(TrackingError, match="other values of excess_nll/far_excess; start anew with --fresh"):
        tracker.log_measurements(trial, measured(128, 256, 512, 1024, summary={"far_excess": 0.6}))


def test_a_table_with_positions_that_repeat_is_no_curve(
    tracker: Tracker, trial: TrackedRun, client: MlflowClient
) -> None:
    tracker.log_measurements(trial, measured(128, 256, 128, 256, name="by_window", summary={}))
    assert client.get_run(trial.run_id).data.metrics == {}
    assert [file.path for file in client.list_artifacts(trial.run_id, "diagnostics")] == [
        "diagnostics/by_window.parquet"
    ]


def test_no_value_of_a_diagnostic_is_infinite(tracker: Tracker, trial: TrackedRun, client: MlflowClient) -> None:
    columns = {"position": np.array([16, 32, 64], np.int64), "std": np.array([0.5, np.inf, np.nan])}
    tracker.log_measurements(trial, measured(columns=columns, summary={"growth": np.inf}))
    assert steps(client, trial, "excess_nll/std") == [16]
    data = client.get_run(trial.run_id).data
    assert data.metrics == {"excess_nll/std": 0.5}
    assert data.tags["excess_nll.nonfinite"] == "3" and data.tags["status.nonfinite"] == "true"
