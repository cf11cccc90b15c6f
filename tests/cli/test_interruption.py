"""Ends that nobody planned: kill -9 of the driver, Ctrl-C, SIGTERM; and the same command afterwards."""

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cli.command_line import Command, small_sweep, start_driver
from tests.cli.stores import children, runs

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(900)]
SWEEP = small_sweep("--out", "out", "--set", "sweep.values=0.1", "--set", "trial.steps=8")


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A sweep under way: its first trial has finished."""
    with start_driver(tmp_path, *SWEEP, until=lambda: any(tmp_path.glob("out/trials/*/result.json"))) as process:
        yield process


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The driver and all it started, the daemons of its Ray cluster included, and of no other cluster."""
    driver = psutil.Process(process.pid)
    started = [driver, *driver.children(recursive=True)]
    (cluster,) = {folder for each in started for folder in re.findall(r"/tmp/isweep-\w+", _line(each))}
    others = [each for each in psutil.process_iter() if cluster in _line(each)]
    return list({each.pid: each for each in (*started, *others)}.values())


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


def wait_until_gone(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    deadline = time.monotonic() + seconds
    while alive(processes) and time.monotonic() < deadline:
        time.sleep(1)
    return alive(processes)


def summary(folder: Path) -> list[dict[str, object]]:
    """The table's rows, without the time they took."""
    rows: list[dict[str, object]] = json.loads((folder / "report" / "summary.json").read_text())["rows"]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def test_a_killed_driver_is_continued_to_the_same_table(
    driver: subprocess.Popen[str], run_command: Command, tmp_path: Path
) -> None:
    processes = family(driver)
    driver.send_signal(signal.SIGKILL)
    killed_at = time.monotonic()
    done = run_command(*SWEEP)
    assert done.returncode == 0, done.stderr
    assert "are finished in" in done.stderr

    whole = run_command(*["whole" if word == "out" else word for word in SWEEP])
    assert whole.returncode == 0, whole.stderr
    assert summary(tmp_path / "out") == summary(tmp_path / "whole")

    # Two folders, two parents, each with one child per trial and nothing left running.
    found = runs(tmp_path)
    parents = [run.info.run_id for run in found if "mlflow.parentRunId" not in run.data.tags]
    assert len(parents) == 2
    for parent in parents:
        assert set(children(tmp_path, parent)) == {"base", "zero", "random_noise 0.1", "state_passing"}
    assert {run.info.status for run in found} == {"FINISHED"}
    left = wait_until_gone(processes, 180 - (time.monotonic() - killed_at))
    assert not left, [_line(each) for each in left]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_sweep_keeps_its_results_and_says_how_to_continue(
    number: signal.Signals, code: int, driver: subprocess.Popen[str], run_command: Command, tmp_path: Path
) -> None:
    processes = family(driver)
    driver.send_signal(number)
    output, _ = driver.communicate(timeout=60)
    assert driver.returncode == code, output
    assert "interrupted" in output and "The same command continues" in output and "Traceback" not in output
    assert not [run for run in runs(tmp_path) if run.info.status == "RUNNING"]
    assert not wait_until_gone(processes, 60)

    done = run_command(*SWEEP)
    assert done.returncode == 0, done.stderr
    assert "are finished in" in done.stderr
    assert {run.info.status for run in runs(tmp_path)} == {"FINISHED"}
    assert len(children(tmp_path)) == 4
