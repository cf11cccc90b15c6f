"""A trial whose two workers run on two nodes: its shards sit beside them, and it trains like one worker."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.multinode.conftest import Nodes
from tests.workers.tune_runs import tune_one
from workers.settings import TrialConfig

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def nodes_of(name: str, **wanted: str) -> list[str]:
    """Nodes of the actors, dead ones included, whose field `name` begins as wanted."""
    from ray.util.state import list_actors

    found: list[Any] = list_actors(limit=10_000)
    return [actor.node_id for actor in found if str(getattr(actor, name)).startswith(wanted["begins"])]


def test_two_workers_on_two_nodes_have_their_shards_beside_them_and_train_like_one(
    small_trial: Callable[..., TrialConfig], ray_cluster: Nodes, tmp_path: Path, token_caches: Path
) -> None:
    losses = {}
    for workers in (1, 2):
        config = small_trial("state_passing", steps=6, trial={"workers": workers})
        folder = tmp_path / f"nodes-{workers}"
        results = tune_one(config, folder, token_caches)
        assert not results.errors, results.errors
        losses[workers] = [entry["loss"] for entry in json.loads((folder / "history.json").read_text())]
    assert losses[2] == pytest.approx(losses[1], rel=1e-3)

    _, left, right = ray_cluster.ids
    assert sorted(nodes_of("class_name", begins="RayTrainWorker")) == sorted([left, right])
    assert sorted(nodes_of("name", begins="bank-nodes-2-")) == sorted([left, right])
