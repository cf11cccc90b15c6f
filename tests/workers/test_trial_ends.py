"""What is left of a trial that does not reach its end: half a minute later nothing of it lives, nothing is held."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.cli.command_line import start_driver, sweep_flags
from tests.cli.stores import runs
from tests.conftest import RayCluster
from tests.workers.tune_runs import tune_one
from workers.settings import TrialConfig

TrialMaker = Callable[..., TrialConfig]
pytestmark = [pytest.mark.ray, pytest.mark.slow]

CLEAN_WITHIN_S = 30.0
STEPS = 4000
"""More than any trial here makes."""
RAYS_OWN = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent", "ray::_AutoscalingCoordinatorActor")
"""Processes that stay with the cluster; the last is Train's, one for all its runs, and holds no CPU."""


def actors(cluster: RayCluster) -> dict[str, str]:
    """Classes of the living actors, by actor id."""
    from ray.util.state import list_actors

    living = list_actors(cluster.address, filters=[("state", "!=", "DEAD")], limit=10_000)
    return {actor.actor_id: actor.class_name for actor in living}


def processes(cluster: RayCluster) -> dict[int, str]:
    """Titles of the cluster's worker processes that are not Ray's own, by process id."""
    found = {}
    for process in cluster.processes():
        try:
            title = process.cmdline()[0] if process.cmdline() else ""
        except psutil.Error:
            continue
        if title.startswith("ray::") and not title.startswith(RAYS_OWN):
            found[process.pid] = title
    return found


def held() -> dict[str, float]:
    """What is not available of the cluster's resources, but for objects in its store."""
    import ray

    available = ray.available_resources()
    totals = {name: total for name, total in ray.cluster_resources().items() if name != "object_store_memory"}
    return {name: total - available.get(name, 0.0) for name, total in totals.items() if available.get(name) != total}


class Remains:
    """What has come since this was made, and still is there."""

    def __init__(self, cluster: RayCluster) -> None:
        self.cluster = cluster
        self.actors, self.processes = set(actors(cluster)), set(processes(cluster))

    def now(self) -> list[str]:
        """Actors, placement groups, processes and held resources, in words."""
        from ray.util.state import list_placement_groups

        groups = list_placement_groups(self.cluster.address, filters=[("state", "!=", "REMOVED")])
        return [
            *(f"actor {name}" for id_, name in actors(self.cluster).items() if id_ not in self.actors),
            *(f"placement group {group.placement_group_id} {group.state}" for group in groups),
            *(f"process {title}" for pid, title in processes(self.cluster).items() if pid not in self.processes),
            *(f"held {amount} of {name}" for name, amount in held().items()),
        ]

    def after_a_while(self) -> list[str]:
        """The same once it is empty or the time is over."""
        deadline = time.monotonic() + CLEAN_WITHIN_S
        while (left := [line for line in self.now() if "_AutoscalingCoordinatorActor" not in line]) and (
            time.monotonic() < deadline
        ):
            time.sleep(0.5)
        return left


def shards_that_were(cluster: RayCluster, trial: str) -> int:
    """Bank actors that have run for a trial, dead ones included."""
    from ray.util.state import list_actors

    return sum(str(actor.name).startswith(f"bank-{trial}-") for actor in list_actors(cluster.address, limit=10_000))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("end", ["stopped by Tune", "failed"])
def test_a_trial_that_ends_early_leaves_nothing(
    end: str, workers: int, ray_cluster: RayCluster, small_trial: TrialMaker, tmp_path: Path, token_caches: Path
) -> None:
    remains = Remains(ray_cluster)
    folder = tmp_path / f"{end.split()[0]}-{workers}"
    folder.mkdir()
    if end == "failed":
        (folder / "checkpoints").touch()  # a file where the folder should be: the first checkpoint cannot be written
    config = small_trial("state_passing", steps=STEPS, trial={"workers": workers})
    # Its first report is that it loads, the third that of step 20.
    results = tune_one(config, folder, token_caches, stop={"training_iteration": 3})

    assert (len(results.errors) == 1) == (end == "failed")
    assert not (folder / "result.json").exists()
    assert shards_that_were(ray_cluster, folder.name) == workers
    assert remains.after_a_while() == []


@pytest.mark.timeout(600)  # three trials must start one after the other, each with two workers
@pytest.mark.parametrize(("number", "workers"), [(signal.SIGINT, 2), (signal.SIGKILL, 1)])
def test_a_command_that_ends_early_leaves_nothing_on_the_cluster_it_had_joined(
    number: signal.Signals, workers: int, ray_cluster: RayCluster, tmp_path: Path
) -> None:
    remains = Remains(ray_cluster)
    token = {name: os.environ[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH")}
    settings = sweep_flags("sweep.arms=state_passing", f"trial.steps={STEPS}", f"trial.workers={workers}")
    pattern = "out/trials/state_passing-*/checkpoints/step-*/manifest.json"
    with start_driver(
        tmp_path,
        *("interventions", "--out", "out", *settings),
        "--address",
        ray_cluster.address,
        until=lambda: list(tmp_path.glob(pattern)),
        seconds=450,
        variables=token,
    ) as driver:
        assert [line for line in remains.now() if "BankShard" in line], "the trial was under way"
        driver.send_signal(number)
        output, _ = driver.communicate(timeout=60)
        assert driver.returncode == (130 if number == signal.SIGINT else -number), output
        assert remains.after_a_while() == []
    if number == signal.SIGINT:
        assert not [run for run in runs(tmp_path, "interventions") if run.info.status == "RUNNING"]
