"""The GPU check as far as a machine without a GPU can tell: what it says is missing, and its own arithmetic."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from benchmarks.gpu_arms import arms
from benchmarks.gpu_check import SECTIONS
from benchmarks.gpu_kernels import errors
from models.registry import ARCHITECTURES

ROOT = Path(__file__).parents[2]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """The command as a user of another folder would give it, with no GPU in sight."""
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "gpu_check.py"), *words],
        cwd="/",
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_lists_every_section_with_what_is_missing() -> None:
    listed = run("--list")
    assert listed.returncode == 0, listed.stderr
    lines = listed.stdout.splitlines()[1:]
    assert [line.partition(":")[0] for line in lines] == [section.name for section in SECTIONS]
    assert all("not run: " in line for line in lines)


def test_a_report_without_a_gpu_says_not_run_and_why(tmp_path: Path) -> None:
    ended = run("--out", str(tmp_path / "report.md"))
    assert ended.returncode == 0, ended.stderr
    text = (tmp_path / "report.md").read_text()
    assert text.splitlines()[0] == "# GPU check: " + ", ".join(f"{section.name} not run" for section in SECTIONS)
    assert text.count("\nnot run: ") == len(SECTIONS)


def test_an_unknown_section_is_refused() -> None:
    ended = run("--only", "acuracy")
    assert ended.returncode == 2
    assert "invalid choice: 'acuracy'" in ended.stderr


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_chunked_path_is_found_accurate(architecture: str) -> None:
    found = errors(architecture, 7, torch.float32, "chunked", "cpu")
    assert max(found.values()) < 1e-4
    assert min(found.values()) > 0.0, "two computations that agree to the last bit were one"


def test_every_arm_trains_for_its_steps() -> None:
    text, right = arms("chunked", "cpu", "tiny")
    assert right, text
    assert text.count("| yes |") == 10


def test_nothing_but_torch_and_numpy_is_needed_beside_the_kernels() -> None:
    """Every part is imported, and the arms run, where no other dependency can be imported."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[^\w.-]", one)[0].replace("-", "_").lower() for one in project["dependencies"]}
    hidden = sorted(names - {"torch", "numpy"})
    assert {"ray", "deepspeed", "pyarrow", "mlflow"} <= set(hidden)
    program = (
        f"import sys; sys.modules |= dict.fromkeys({hidden!r})\n"
        "import benchmarks.gpu_bare, benchmarks.gpu_kernels, benchmarks.gpu_steps, benchmarks.gpu_arms as arms\n"
        "arms.STEPS = 2; arms.arms('chunked', 'cpu', 'tiny')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
