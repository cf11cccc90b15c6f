"""Processes of a trial that die: the trial is tried again from its checkpoint, the others notice nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.cli.command_line import environment, small_sweep
from tests.cli.stores import children

pytestmark = [pytest.mark.slow, pytest.mark.ray]
STEPS = 150
SWEEP = small_sweep("--out", "out", "--set", "sweep.values=0.1", "--set", f"trial.steps={STEPS}")


def worker_of(folder: Path) -> int:
    (record,) = folder.glob("out/trials/state_passing-*/process.json")
    return int(json.loads(record.read_text())["pid"])


def bank_of(driver: subprocess.Popen[str]) -> int:
    children = psutil.Process(driver.pid).children(recursive=True)
    (pid,) = [child.pid for child in children if child.is_running() and "ray::BankShard" in " ".join(child.cmdline())]
    return pid


@pytest.mark.parametrize("victim", ["worker", "bank shard"])
def test_a_killed_process_costs_its_trial_one_retry(victim: str, tmp_path: Path) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-m", "sweeps.run", *SWEEP],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    # The trial of state passing, once it has a checkpoint: the last one to start, so that it runs for a while.
    deadline = time.monotonic() + 240
    while not list(tmp_path.glob("out/trials/state_passing-*/checkpoints/step-*/manifest.json")):
        assert driver.poll() is None and time.monotonic() < deadline, "no checkpoint of state passing"
        time.sleep(0.05)
    os.kill(worker_of(tmp_path) if victim == "worker" else bank_of(driver), signal.SIGKILL)
    output, _ = driver.communicate(timeout=240)
    assert driver.returncode == 0, output
    assert output.count("it is tried again") == 1 and "state_passing: failed once" in output
    assert {run.info.status for run in children(tmp_path).values()} == {"FINISHED"}
    (history,) = tmp_path.glob("out/trials/state_passing-*/history.json")
    assert [entry["step"] for entry in json.loads(history.read_text())] == list(range(1, STEPS + 1))
