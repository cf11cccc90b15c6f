"""A trial as Tune starts it: in place with one worker, in a Ray Train worker group with several."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.bank.layout import BankLayout
from storage.curve_files import read_curve
from tests.workers.tune_runs import tune_one
from workers.settings import TrialConfig
from workers.trainable import DRIVER_RESOURCE, TrialJob, bank_namespace, shard_nodes, trial_resources

TrialMaker = Callable[..., TrialConfig]
pytestmark = pytest.mark.ray


@pytest.fixture
def run_in_tune(ray_cluster: Any, tmp_path: Path, token_caches: Path) -> Callable[[TrialConfig, str], Path]:
    def run(config: TrialConfig, name: str) -> Path:
        results = tune_one(config, tmp_path / name, token_caches)
        assert not results.errors, results.errors
        return tmp_path / name

    return run


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


@pytest.mark.parametrize(
    ("shards", "nodes", "expected"),
    [
        (2, ["a", "b"], ["a", "b"]),
        (1, ["a", "b"], ["a"]),
        (4, ["a", "b"], ["a", "a", "b", "b"]),
        (3, ["a"], ["a", "a", "a"]),
        (4, ["a", "a", "b", "c"], ["a", "a", "b", "c"]),
        # Rows 0-2, 3-5, 6-8 and 9-11 of the workers; shards begin at rows 0, 4 and 8.
        (3, ["a", "b", "c", "d"], ["a", "b", "c"]),
    ],
)
def test_a_shard_sits_on_the_node_of_the_worker_of_its_first_row(
    shards: int, nodes: list[str], expected: list[str]
) -> None:
    assert shard_nodes(BankLayout(rows=12, elements=1), shards, nodes) == expected


def test_banks_of_two_sweeps_never_meet_though_trials_and_plans_are_the_same(ray_cluster: Any) -> None:
    from storage.bank.sharded import connect_sharded_bank, start_sharded_bank

    # One sweep in two folders (`--fresh`): the ids differ at their ends only.
    ids = [f"{'0' * 64}-{folder}" for folder in ("first", "second")]
    spaces = [bank_namespace(id_) for id_ in ids]
    layout, rows = BankLayout(rows=2, elements=3), np.arange(2)
    first, second = (start_sharded_bank(layout, 1, space, "trial") for space in spaces)
    try:
        for value, bank in ((1.0, first), (2.0, second)):
            bank.deposit(0, rows, np.full((2, 3), value, np.float32))
            bank.flush()
        for value, space in ((1.0, spaces[0]), (2.0, spaces[1])):
            client = connect_sharded_bank(space, "trial")
            assert (client.withdraw(1, rows) == value).all()
            client.close()
        first.close()
        assert (second.withdraw(1, rows) == 2.0).all()
    finally:
        first.close()
        second.close()
