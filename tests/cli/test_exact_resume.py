"""A sweep whose processes die of SIGKILL at drawn steps and lines ends equal to a quiet one, bit for bit.

The kills are drawn from a seed that is printed; `FAULT_SEED=<seed>` repeats them. See docs/resume.md.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage.curve_files import read_curve
from tests.cli.command_line import environment, sweep_flags
from tests.cli.faults.sitecustomize import Fault, as_environment
from tests.cli.stores import children, runs

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(1800)]
STEPS, EVERY = 80, 4
SWEEP = [
    "interventions",
    *sweep_flags(f"trial.steps={STEPS}", f"trial.checkpoint_every={EVERY}", "sweep.arms=fitted_noise,state_passing"),
]
TWO_WORKERS = [
    "interventions",
    *sweep_flags("trial.workers=2", "trial.steps=24", f"trial.checkpoint_every={EVERY}", "sweep.arms=state_passing"),
]
TIMES = ("seconds", "tokens_per_second")
"""What a quiet run and a killed one may differ in."""

STEP = "workers.training:TrainingLoop.step"
DEPOSIT = "storage.bank.contract:StateBank.deposit"
MERGE = "storage.bank.contract:StateBank.merge_moments"
STORE = "storage.bank.row_store:RowStore.put_states"
SAVE = "workers.checkpointing:save_trial"
PUBLISH = "storage.checkpoints:publish"
SNAPSHOT = "storage.bank.snapshot:write_shard"
LINES = {STEP: 300, DEPOSIT: 40, MERGE: 20, STORE: 12, SAVE: 12, PUBLISH: 15, SNAPSHOT: 25}
"""The line of a kill is drawn from so many; a call that has fewer dies as it returns."""


class Kills:
    """Draws faults from a seed; their notes lie in one folder."""

    def __init__(self, seed: int, notes: Path) -> None:
        self.random = random.Random(seed)
        self.notes = notes
        notes.mkdir()

    def of_three_commands(self, identities: dict[str, str]) -> list[list[Fault]]:
        """The faults of each command: after each, the driver dies, but in the last."""
        passing, fitted = [identities["state_passing"]], [identities["fitted_noise"]]
        both = passing + fitted
        return [
            self._command(
                self.fault("worker of state_passing in a deposit", DEPOSIT, (6, 14), passing),
                self.fault("worker of fitted_noise while it merges moments", MERGE, (6, 14), fitted),
                driver=self.fault("driver during a training step", STEP, (16, 22), both, "driver"),
            ),
            self._command(
                self.fault("bank shard of state_passing while it stores a block", STORE, (26, 36), passing),
                self.fault("bank shard of fitted_noise in its snapshot file", SNAPSHOT, (24, 34), fitted),
                driver=self.fault("driver during a checkpoint write", SAVE, (38, 44), both, "driver"),
            ),
            self._command(
                self.fault("worker of state_passing before a manifest is written", PUBLISH, (50, 68), passing),
                self.fault("worker of fitted_noise during a training step", STEP, (50, 68), fitted),
            ),
        ]

    def fault(self, name: str, call: str, steps: tuple[int, int], trials: list[str], victim: str = "itself") -> Fault:
        """A kill in this call, at a drawn step between these two and a drawn line."""
        step, line = self.random.randint(*steps), self.random.randrange(LINES[call])
        return Fault(call=call, step=step, line=line, victim=victim, trials=trials, note=str(self.notes / name))

    @staticmethod
    def _command(*faults: Fault, driver: Fault | None = None) -> list[Fault]:
        """The faults of one command; that of its driver comes last, since none can follow it."""
        last = [] if driver is None else [replace(driver, after=[each.note for each in faults])]
        return [*faults, *last]

    def log(self, faults: Sequence[Fault]) -> list[str]:
        """A line per kill, in the order in which they happened. Fails when one did not."""
        notes = [(Path(fault.note).name, json.loads(Path(fault.note).read_text())) for fault in faults]
        return [
            f"killed: {name}, step {note['step']}, {note['where']}"
            for name, note in sorted(notes, key=lambda each: float(each[1]["time"]))
        ]


def run(folder: Path, sweep: Sequence[str], out: str, faults: Sequence[Fault] = ()) -> tuple[int, str]:
    """Exit code and output of the command; given again, as it then asks for, where the machine was too busy for Ray."""
    command = [sys.executable, "-m", "sweeps.run", *sweep, "--out", out]
    variables = {**environment(), **(as_environment(faults) if faults else {})}
    for _ in range(3):
        with (folder / "output.txt").open("w+") as file:
            done = subprocess.run(
                command, cwd=folder, env=variables, stdout=file, stderr=subprocess.STDOUT, timeout=600
            )
            file.seek(0)
            output = file.read()
        if "Ray did not start on this machine" not in output:
            break
    return done.returncode, output


def identities(folder: Path, sweep: Sequence[str]) -> dict[str, str]:
    """Of the planned trials, by label."""
    command = [sys.executable, "-m", "sweeps.run", *sweep, "--dry-run", "--json"]
    plan = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, check=True, timeout=60)
    return {trial["label"]: trial["identity"] for trial in json.loads(plan.stdout)["trials"]}


def numbers(trial: Path) -> dict[str, Any]:
    """All that a trial left behind, without the time it took: record, history, curves, and the bytes of the model."""
    result = json.loads((trial / "result.json").read_text())
    history = json.loads((trial / "history.json").read_text())
    return {
        "result": {key: value for key, value in result.items() if key not in TIMES},
        "history": [{key: value for key, value in entry.items() if key not in TIMES} for entry in history],
        "curves": {name: read_curve(trial / name) for name in sorted(result["curves"].values())},
        "model": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in trial.glob("model/*")},
    }


def bank_of(trials: Path, arm: str) -> dict[str, Any]:
    """What the record of an arm's trial says of its bank."""
    (path,) = trials.glob(f"{arm}-*/result.json")
    bank: dict[str, Any] = json.loads(path.read_text())["bank"]
    return bank


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Bit for bit: JSON keeps every digit of a float."""
    assert one["history"] == other["history"]
    assert one["result"] == other["result"]
    assert one["model"] == other["model"]
    assert one["curves"].keys() == other["curves"].keys()
    for name, curve in one["curves"].items():
        assert curve.equals(other["curves"][name]), name


def fault_seed(sweep: Sequence[str]) -> int:
    """The seed of the kills, printed with the command."""
    seed = int(os.environ.get("FAULT_SEED", time.time_ns() % 10**6))
    print(f"\nFAULT_SEED={seed}\npython -m sweeps.run {' '.join(sweep)}")
    return seed


def test_a_sweep_killed_eight_times_ends_equal_to_the_quiet_one(tmp_path: Path) -> None:
    kills = Kills(fault_seed(SWEEP), tmp_path / "notes")
    commands = kills.of_three_commands(identities(tmp_path, SWEEP))
    for number, faults in enumerate(commands, start=1):
        code, output = run(tmp_path, SWEEP, "killed", faults)
        has_driver = any(fault.victim == "driver" for fault in faults)
        assert code == (-signal.SIGKILL if has_driver else 0), output
        lines = output.replace(f"{tmp_path}/", "").splitlines()
        said = [line for line in lines if "tried again" in line or "are finished in" in line]
        print(f"command {number}, exit code {code}", *kills.log(faults), *said, sep="\n    ")
        # Each trial that lost a process was tried again, once; the others noticed nothing.
        for label in ("state_passing", "fitted_noise"):
            assert output.count(f"{label}: failed once") == 1, output
        assert output.count("it is tried again") == 2, output
        assert "Traceback" not in output and "(raylet)" not in output, output

    code, output = run(tmp_path, SWEEP, "quiet")
    assert code == 0 and "failed" not in output, output
    killed, quiet = tmp_path / "killed" / "trials", tmp_path / "quiet" / "trials"
    trials = sorted(path.name for path in quiet.iterdir())
    assert trials == sorted(path.name for path in killed.iterdir())
    for trial in trials:
        assert_equal(numbers(killed / trial), numbers(quiet / trial))
        print(f"equal: {trial}")
    assert all(len(bank_of(killed, arm)["digest"]) == 64 for arm in ("state_passing", "fitted_noise"))
    # Two folders, two parents, each with one finished run per trial.
    found = runs(tmp_path, "interventions")
    for parent in [run.info.run_id for run in found if "mlflow.parentRunId" not in run.data.tags]:
        assert len(children(tmp_path, parent, "interventions")) == len(trials)
    assert len(found) == 2 * (1 + len(trials)) and {run.info.status for run in found} == {"FINISHED"}


def test_two_workers_of_which_one_dies_end_equal(tmp_path: Path) -> None:
    kills = Kills(fault_seed(TWO_WORKERS), tmp_path / "notes")
    name, call = kills.random.choice(
        [("a worker in a deposit", DEPOSIT), ("a worker in a step", STEP), ("a bank shard", STORE), ("a save", SAVE)]
    )
    fault = kills.fault(name, call, (6, 18), [identities(tmp_path, TWO_WORKERS)["state_passing"]])
    code, output = run(tmp_path, TWO_WORKERS, "out", [fault])
    assert code == 0 and output.count("it is tried again") == 1, output
    print(f"exit code {code}", *kills.log([fault]), sep="\n    ")
    (trial,) = tmp_path.glob("out/trials/state_passing-*")
    killed = numbers(trial)

    # Without the folder of a trial the same command runs that trial again, from its start.
    shutil.rmtree(trial)
    code, output = run(tmp_path, TWO_WORKERS, "out")
    assert code == 0 and "2 of 3 trials are finished" in output and "failed" not in output, output
    assert_equal(killed, numbers(trial))
