"""Settings and environment of the command line under test, and a command that runs while the test acts on it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
    "eval.diagnostic_windows=0",
)
"""Settings of a sweep that runs in seconds."""

Command = Callable[..., subprocess.CompletedProcess[str]]


def sweep_flags(*settings: str) -> list[str]:
    """The flags of the small settings, changed by these."""
    values = dict(setting.split("=", 1) for setting in (*SMALL, *settings))
    return [word for name, value in values.items() for word in ("--set", f"{name}={value}")]


def small_sweep(*more: str) -> list[str]:
    """`noise_scale` with the small settings and these further flags."""
    return ["noise_scale", *sweep_flags(), *more]


def environment() -> dict[str, str]:
    """The environment of a command: this repository's code, plain output, nothing of the tests' own cluster."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**mine, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}


@contextmanager
def start_driver(
    folder: Path,
    *arguments: str,
    until: Callable[[], object] = lambda: True,
    seconds: float = 240,
    variables: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """The command under way in `folder`: entered once `until()` is true, and ended at exit whatever happens.

    `variables` are added to its environment. Its standard output and error come together, from
    `process.communicate()`. Fails with what the command said when it ends before `until()` or takes longer than
    `seconds` to get there.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "sweeps.run", *arguments],
        cwd=folder,
        env={**environment(), **(variables or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A signal for the tests' own terminal must not reach the command.
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + seconds
        while not until():
            too_late = time.monotonic() > deadline
            if too_late or process.poll() is not None:
                process.kill()
                output, _ = process.communicate()
                raise AssertionError(f"{'not in time' if too_late else 'ended too early'}; the command said:\n{output}")
            time.sleep(0.05)
        yield process
    finally:
        process.kill()  # nothing where it has ended
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
