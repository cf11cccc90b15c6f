"""Settings and environment of the command line under test."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SMALL = (
    "base.checkpoint=fresh",
    "trial.steps=4",
    "trial.rows=8",
    "trial.checkpoint_every=2",
    "eval.length=1024",
    "eval.windows=3",
    "eval.select_windows=2",
    "eval.apart_windows=1",
)
"""Settings of a sweep that runs in seconds."""

Command = Callable[..., subprocess.CompletedProcess[str]]


def small_sweep(*more: str) -> list[str]:
    """`noise_scale` with the small settings and these further flags."""
    return ["noise_scale", *(word for setting in SMALL for word in ("--set", setting)), *more]


def environment() -> dict[str, str]:
    """The environment of a command: this repository's code, plain output, nothing of the tests' own cluster."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**mine, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}
