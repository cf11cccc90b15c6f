"""The injected faults themselves: they strike where they say, once, and a mistake in one is not overlooked."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command_line import environment
from tests.cli.faults.sitecustomize import Fault, as_environment

PROGRAM = """
import numpy as np
from storage.bank.in_process import InProcessBank
from storage.bank.layout import BankLayout
bank = InProcessBank(BankLayout(rows=2, elements=3))
for step in range(4):
    bank.deposit(step, [0, 1], np.zeros((2, 3), dtype=np.float32))
    print(step, flush=True)
"""


def run(fault: Fault) -> subprocess.CompletedProcess[str]:
    variables = {**environment(), **as_environment([fault])}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], env=variables, capture_output=True, text=True, timeout=60, cwd="/"
    )


@pytest.mark.parametrize(("line", "where"), [(0, "in deposit"), (2, "storage/bank/"), (10**6, "at the end of")])
def test_a_fault_kills_once_at_its_step_and_line(line: int, where: str, tmp_path: Path) -> None:
    note = tmp_path / "note"
    fault = Fault(
        call="storage.bank.contract:StateBank.deposit",
        step=2,
        line=line,
        victim="itself",
        trials=[],
        note=str(note),
    )
    first, second = run(fault), run(fault)
    assert (first.returncode, first.stdout.split()) == (-signal.SIGKILL, ["0", "1"]), first.stderr
    assert json.loads(note.read_text())["step"] == 2 and where in json.loads(note.read_text())["where"]
    assert (second.returncode, second.stdout.split()) == (0, ["0", "1", "2", "3"]), second.stderr


def test_a_fault_in_a_call_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    done = run(
        Fault(
            call="storage.bank.contract:StateBank.depositt",
            step=0,
            line=0,
            victim="itself",
            trials=[],
            note=str(tmp_path / "note"),
        )
    )
    assert done.returncode == 1 and "depositt" in done.stderr
