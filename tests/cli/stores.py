"""What a command left in the tracking store of its folder."""

from pathlib import Path

import mlflow
from mlflow.entities import Run


def runs(folder: Path, sweep: str = "noise_scale") -> list[Run]:
    """All runs of the sweep's experiment."""
    client = mlflow.MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(sweep)
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id]))


def children(folder: Path, parent: str | None = None, sweep: str = "noise_scale") -> dict[str, Run]:
    """Trial runs by name, of one parent or of all; fails when a trial has two."""
    of = {run.info.run_id: run.data.tags.get("mlflow.parentRunId") for run in runs(folder, sweep)}
    found = [run for run in runs(folder, sweep) if of[run.info.run_id] and parent in (None, of[run.info.run_id])]
    by_name = {run.data.tags["mlflow.runName"]: run for run in found}
    assert len(by_name) == len(found), "a trial has two runs"
    return by_name
