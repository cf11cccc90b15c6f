"""A trial as Tune starts it: in place with one worker, in a Ray Train worker group with several."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray import tune

from storage.curve_files import read_curve
from workers.settings import TrialConfig
from workers.trainable import DRIVER_RESOURCE, TrialJob, run_trial, trial_name, trial_resources

TrialMaker = Callable[..., TrialConfig]
pytestmark = pytest.mark.ray


@pytest.fixture
def run_in_tune(ray_cluster: Any, tmp_path: Path, token_caches: Path) -> Iterator[Callable[[TrialConfig, str], Path]]:
    def run(config: TrialConfig, name: str) -> Path:
        job = TrialJob(
            config=config.to_dict(),
            name=name,
            identity=name,
            folder=str(tmp_path / name),
            cache=str(token_caches),
            sweep_id="test-sweep",
            gpus_per_worker=0,
        )
        results = tune.Tuner(
            tune.with_resources(run_trial, trial_resources),
            param_space={"job": tune.grid_search([job.as_dict()])},
            tune_config=tune.TuneConfig(trial_name_creator=trial_name, trial_dirname_creator=trial_name),
            run_config=tune.RunConfig(name="tune", storage_path=str(tmp_path), verbose=0),
        ).fit()
        assert not results.errors, results.errors
        return tmp_path / name

    yield run


def test_resources_reserve_the_worker_itself_or_only_the_driver(small_trial: TrialMaker) -> None:
    def reserved(**trial: int) -> dict[str, float]:
        job = TrialJob(
            config=small_trial("zero", trial=trial).to_dict(),
            name="zero",
            identity="zero",
            folder="",
            cache="",
            sweep_id="",
            gpus_per_worker=0,
        )
        bundle: dict[str, float] = trial_resources({"job": job.as_dict()}).bundles[0]
        return bundle

    assert reserved(threads=2) == {"CPU": 2}
    assert reserved(workers=2) == {DRIVER_RESOURCE: 1}


def test_two_gloo_workers_train_like_one_through_two_shards(
    small_trial: TrialMaker, run_in_tune: Callable[[TrialConfig, str], Path]
) -> None:
    folders = {}
    for workers in (1, 2):
        config = small_trial("state_passing", intervention={"reset_probability": 0.3}, trial={"workers": workers})
        config = TrialConfig.from_dict({**config.to_dict(), "bank": {**config.to_dict()["bank"], "shards": 2}})
        folders[workers] = run_in_tune(config, f"workers-{workers}")
    losses = {}
    for workers, folder in folders.items():
        result = json.loads((folder / "result.json").read_text())
        # Read from torch's process group inside the trial.
        assert result["workers"] == workers and result["backend"] == "gloo"
        losses[workers] = [entry["loss"] for entry in json.loads((folder / "history.json").read_text())]
    assert losses[2][0] == pytest.approx(losses[1][0], rel=1e-6)
    assert losses[2] == pytest.approx(losses[1], rel=1e-3)
    curves = [read_curve(folder / "report.parquet") for folder in folders.values()]
    assert curves[0].document_ids == curves[1].document_ids
    assert curves[0].perplexity() == pytest.approx(curves[1].perplexity(), rel=1e-3)
