"""The whole catalogue as one command: every plan of every preset, and two short sweeps that are stopped and go on."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sweeps.catalogue import CATALOGUE
from tests.cli.command_line import Command, environment, sweep_flags

OWN = """
from sweeps.registry import NamedSweep
from sweeps.trials import base_trial, post_training


def trials(settings, seeds):
    base = base_trial(settings, seeds[0])
    return [base, *(post_training(settings, base, "state_passing", seed) for seed in seeds)]


SWEEP = NamedSweep(
    name="{name}", question="Mine?", why="So.", paper_found="Nothing.", contradicts="Nothing.", varies="",
    presets={{"demo": {{"trial.rows": 8}}}}, trials=trials,
)
"""


@pytest.mark.parametrize("preset", ["demo", "paper"])
def test_the_plan_of_every_sweep_is_shown(preset: str, run_command: Command, tmp_path: Path) -> None:
    done = run_command("--all", "--dry-run", "--preset", preset, timeout=600)
    assert done.returncode == 0, done.stderr
    totals = [line for line in done.stdout.splitlines() if " training tokens" in line and " trials, " in line]
    hours = [line for line in done.stdout.splitlines() if line.startswith("on GPUs: ") and " GPU-hours" in line]
    assert len(totals) == len(hours) == len(CATALOGUE)
    assert ("from the hub: the text monology/pile-uncopyrighted, split train" in done.stdout) == (preset == "paper")
    assert all(f"{entry.sweep}: " in done.stdout for entry in CATALOGUE)
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_beside_all_is_a_mistake(run_command: Command) -> None:
    done = run_command("beta", "--all")
    assert done.returncode == 2 and "leave out the name of a sweep" in done.stderr


def test_what_every_sweep_refuses_is_a_mistake_of_the_command(run_command: Command) -> None:
    done = run_command("--all", "--dry-run", "--preset", "nope", timeout=600)
    assert done.returncode == 2 and done.stderr.count("has no preset 'nope'") == len(CATALOGUE)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_a_catalogue_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / f"{name}.py").write_text(OWN.format(name=name))
    flags = sweep_flags("trial.rows=8", "trial.steps=30")
    program = (
        "import sys\n"
        "from sweeps import catalogue\n"
        "catalogue.CATALOGUE = (catalogue.Entry('first.py'), catalogue.Entry('second.py'))\n"
        f"sys.exit(catalogue.run_catalogue({flags}, shown_only=False))\n"
    )
    command = [sys.executable, "-c", program]
    where = {"cwd": tmp_path, "env": environment(), "text": True, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, **where)  # type: ignore[call-overload]
    assert process.stdout is not None
    for line in process.stdout:
        if "finished in" in line:
            process.send_signal(signal.SIGINT)
            break
    said = process.stdout.read()
    assert process.wait(timeout=120) == 130, said
    assert "interrupted; the same command continues" in said and "not started" in said

    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=400, **where)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout
    assert "1 of 2 trials are finished" in done.stdout
    record = json.loads((tmp_path / "runs" / "catalogue.json").read_text())
    assert {title: kept["exit_code"] for title, kept in record.items()} == {"first.py": 0, "second.py": 0}
