"""Folders of finished sweeps with known numbers, for the tests of the report."""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from storage.curve_files import write_curve
from storage.curves import Curve
from storage.measurements import Measurements, write_measurements
from tests.curve_makers import make_curve
from workers.settings import TrialConfig


@dataclass
class Made:
    """One trial of a made-up sweep."""

    label: str
    seed: int = 0
    value: float | None = None
    group: str = ""
    arm: str = ""
    rise: float = 0.1
    mean: float = 1.2
    length: int = 16384
    config: dict[str, dict[str, Any]] = field(default_factory=dict)
    finished: bool = True
    failure: str = ""
    diagnosed: bool = False

    @property
    def name(self) -> dict[str, Any]:
        arm = self.arm or self.label.removeprefix(f"{self.group} ").split()[0]
        return {"label": self.label, "arm": arm, "value": self.value, "group": self.group}

    @property
    def identity(self) -> str:
        return hashlib.sha256(f"{self.label} {self.seed}".encode()).hexdigest()

    def curve(self, split: str = "report") -> Curve:
        salt = {"report": 0, "select": 1, "apart": 2}[split]
        curve = make_curve(self.mean, rise=self.rise, noise=0.01, seed=10 * self.seed + salt, length=self.length)
        curve.nll_sum.setflags(write=False)
        return Curve(**{**curve.__dict__, "split": split})


ABOUT = {
    "why": "To see what it does.",
    "figure": "Fig. 5",
    "paper_found": "It repairs.",
    "contradicts": "A control that repairs as well.",
    "varies": "intervention.sigma",
    "facets": [],
    "seeds_of": "trial.seed",
}


def make_folder(root: Path, trials: list[Made], **plan: Any) -> Path:
    """A sweep's folder as a driver leaves it: `sweep.json`, and results, curves and diagnostics of finished trials."""
    listed = []
    for trial in trials:
        config = TrialConfig(arm="state_passing" if trial.name["arm"] not in _ARMS else trial.name["arm"]).to_dict()
        config["trial"]["seed"] = trial.seed
        for group, settings in trial.config.items():
            config[group] |= settings
        name = {"name": trial.name, "label": trial.label, "arm": config["arm"]}
        listed.append({**name, "seed": trial.seed, "identity": trial.identity, "config": config})
        _write_trial(root / "trials" / f"trial-{trial.identity[:8]}", trial, config)
    whole: dict[str, Any] = {
        "sweep": "made_up",
        "question": "Does it work?",
        "about": ABOUT,
        "preset": "demo",
        "identity": "0" * 64,
    }
    whole |= {"command": "python -m sweeps.run made_up", "trials": listed, **plan}
    root.mkdir(parents=True, exist_ok=True)
    (root / "sweep.json").write_text(json.dumps(whole))
    return root


_ARMS = ("base", "zero", "random_noise", "fitted_noise", "state_passing", "tbtt")


def _write_trial(folder: Path, trial: Made, config: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    if trial.failure:
        (folder / "failure.txt").write_text(trial.failure)
    if not trial.finished:
        return
    for split in ("report", "select"):
        write_curve(folder / f"{split}.parquet", trial.curve(split))
    tables = diagnostics(trial) if trial.diagnosed else []
    for table in tables:
        write_measurements(folder / f"{table.name}.parquet", table)
    result = {
        "identity": trial.identity,
        "config": config,
        "curves": {split: f"{split}.parquet" for split in ("report", "select")},
        "diagnostics": {table.name: f"{table.name}.parquet" for table in tables},
        "diagnostics_left_out": {} if tables else {"coverage": "no states were kept"},
        "seconds": {"training": 20.0, "evaluation": 10.0},
        "device": "cpu",
        "workers": 1,
        "kernel": "chunked",
    }
    (folder / "result.json").write_text(json.dumps(result))


def diagnostics(trial: Made) -> list[Measurements]:
    """The four diagnostics, with readings that follow from `rise` and the seed."""
    position = 2 ** np.arange(5, 14)
    growing = trial.rise * np.log2(position / 32) + 0.01 * trial.seed
    about = {"train_length": 64, "windows": 2}
    grid = np.arange(0, 256, 16)
    layer, head = (part.ravel() for part in np.meshgrid(np.arange(2), np.arange(3), indexing="ij"))
    heads = {
        "position": np.repeat(position, 6),
        "layer": np.tile(layer, len(position)),
        "head": np.tile(head, len(position)),
        "std": np.repeat(1 + growing, 6) * np.tile(1 + layer + 0.1 * head, len(position)),
    }
    return [
        Measurements("excess_nll", {"position": position, "excess_nll": growing}, {}, about),
        Measurements("effective_remembrance", {"position": grid, "total_variation": grid / 256}, {}, about),
        Measurements(
            "state_statistics",
            {"position": position, "std": 1 + growing, "growing_share": np.clip(growing, 0, 1)},
            {},
            about,
        ),
        Measurements("state_statistics_by_head", heads, {}, about),
        Measurements(
            "coverage", {"position": position, "distance": 0.1 + growing}, {"between_training_halves": 0.25}, about
        ),
    ]
