"""The screenshot of the README, taken of a small store: real MLflow server, real browser."""

import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from docs.take_screenshot import mlflow_ui
from storage.tracking import Tracker
from sweeps.report.figure_lines import styles
from sweeps.report.results import ArmResult
from tests.curve_makers import make_curve

ROOT = Path(__file__).parents[2]
ARMS = {"base": (None, 0.15), "random_noise 0.1": (0.1, 0.05), "state_passing": (None, 0.0)}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="needs the Debian package chromium"),
    pytest.mark.skipif(shutil.which("chromedriver") is None, reason="needs the Debian package chromium-driver"),
]


def results() -> list[ArmResult]:
    curves = {label: make_curve(rise=rise) for label, (_, rise) in ARMS.items()}
    return [
        ArmResult(label, label.split()[0], 0, ARMS[label][0], None, curve, None, 1.0) for label, curve in curves.items()
    ]


def make_store(uri: str) -> None:
    """Two sweeps of one name; the screenshot is of the later one."""
    tracker = Tracker(uri)
    colors = {label: style.color for (_, label), style in styles(results()).items()}
    for sweep_id, arms in (("earlier", results()[:1]), ("later", results())):
        parent = tracker.open_sweep("noise_scale", sweep_id)
        for found in arms:
            run = tracker.open_trial(parent, found.label, found.label, found.arm, {}, colors[found.label])
            tracker.log_training(run, [{"step": step, "loss": 1.0 / step} for step in range(1, 20)])
            tracker.log_curve(run, found.report)
            # The UI makes sections of its own for these, which must not push ours out of sight.
            for split in ("select", "apart"):
                tracker.log_curve(run, found.report, f"{split}/ppl_by_position")
        tracker.close_open_runs(sweep_id, "FINISHED")


def test_the_page_draws_as_many_lines_as_there_are_trials(tmp_path: Path) -> None:
    make_store(f"sqlite:///{tmp_path}/mlflow.db")
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "take_screenshot.py"), "--out", "shot.png"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3 lines drawn, shot.png\n"
    picture = imread(tmp_path / "shot.png")
    assert picture.shape[1] == 1600
    for (_, label), style in styles(results()).items():
        wanted = [int(style.color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        near = np.abs(picture[..., :3] - wanted).max(axis=-1) < 0.02
        assert near.sum() > 300, f"{label} is not seen"


def test_the_ui_hands_out_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tracker = Tracker("sqlite:///mlflow.db")
    parent = tracker.open_sweep("noise_scale", "one")
    Path("summary.md").write_text("| arm |")
    tracker.log_report(parent, [Path("summary.md")])
    page = f"get-artifact?path=report/summary.md&run_uuid={parent.run_id}"
    with mlflow_ui("sqlite:///mlflow.db") as address, urllib.request.urlopen(f"{address}/{page}") as found:
        assert found.read() == b"| arm |"


def test_a_missing_sweep_is_one_sentence(tmp_path: Path) -> None:
    Tracker(f"sqlite:///{tmp_path}/mlflow.db")
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "take_screenshot.py"), "--experiment", "nothing"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.strip().endswith("sqlite:///mlflow.db has no sweep 'nothing'; run the sweep first")
