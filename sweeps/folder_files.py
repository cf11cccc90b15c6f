"""Names of the files in a sweep's folder, and what is read of a trial in it, with or without the plan that made it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from storage.curve_files import read_curve
from storage.curves import Curve
from storage.measurements import Measurements, read_measurements
from workers.trial_files import FAILURE

PLAN = "sweep.json"
SESSION = "session.json"
"""Wall time of the last command that ran trials, for `benchmarks.demo_time`."""
REPORT = "report"
"""Folder of figures and tables."""
NOT_FINISHED = "it did not run to its end"
"""Why a trial failed that left no reason behind."""


def read_curves(trial: Path, result: Mapping[str, Any]) -> dict[str, Curve]:
    """The curves in the folder of a finished trial by split. Raises StorageError when one is damaged."""
    return {split: read_curve(trial / name) for split, name in result["curves"].items()}


def read_diagnostics(trial: Path, result: Mapping[str, Any]) -> dict[str, Measurements]:
    """The diagnostics in the folder of a finished trial by name. Raises StorageError when one is damaged."""
    return {name: read_measurements(trial / file) for name, file in result.get("diagnostics", {}).items()}


def read_failure(trial: Path) -> str | None:
    """First line of why the last attempt of the trial in this folder failed; None where it says nothing."""
    path = trial / FAILURE
    return path.read_text().partition("\n")[0] if path.is_file() else None
