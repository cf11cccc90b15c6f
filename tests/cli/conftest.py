"""The command line as a user has it: a process of its own, in an empty folder, with its own tracking store."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command_line import Command, environment


@pytest.fixture
def run_command(tmp_path: Path) -> Command:
    def run(*arguments: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "sweeps.run", *arguments],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run
