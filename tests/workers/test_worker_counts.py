"""Contract 7 with real gloo workers: 1, 2 or 4 of them, and any micro-batches, train alike through the sharded bank."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.measurements import read_measurements
from storage.settings import BankSettings
from workers.context import TrialContext
from workers.evaluations.diagnostics import DIAGNOSTICS
from workers.settings import TrialConfig
from workers.trainable import TrialJob, _open_bank
from workers.trial import train

TrialMaker = Callable[..., TrialConfig]
ContextMaker = Callable[..., TrialContext]
pytestmark = [pytest.mark.ray, pytest.mark.slow]

STEPS = 20
ARMS: list[Any] = [
    pytest.param("fitted_noise", {}, "auto", id="fitted_noise"),
    pytest.param("state_passing", {"passing": "permuted"}, "everything", id="state_passing-permuted"),
    pytest.param("state_passing", {"passing": "permuted"}, "resident", id="state_passing-permuted-resident"),
    pytest.param("correlated_noise", {"capacity": 16, "scope": "all"}, "auto", id="correlated_noise"),
]


class GlooWorker:
    """One process of a worker group, which trains one trial after the other."""

    def __init__(self, rank: int, world: int, meeting_place: str) -> None:
        import os

        import torch.distributed as dist

        self.rank, self.world = rank, world
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
        dist.init_process_group("gloo", init_method=f"file://{meeting_place}", rank=rank, world_size=world)

    def train(self, job_values: dict[str, Any]) -> None:
        """As a worker of a trial does."""
        job = TrialJob(**job_values)
        context = TrialContext(
            folder=Path(job.folder), cache=Path(job.cache), identity=job.identity, rank=self.rank, world=self.world
        )
        context.open_bank = partial(_open_bank, job, context)
        train(TrialConfig.from_dict(job.config), context)


@pytest.fixture(scope="module")
def worker_groups(ray_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, list[Any]]]:
    """Two and four gloo workers."""
    import ray

    groups: dict[int, list[Any]] = {}
    for world in (2, 4):
        place = str(tmp_path_factory.mktemp("gloo") / "store")
        kind = ray.remote(num_cpus=0)(GlooWorker)
        groups[world] = [kind.remote(rank, world, place) for rank in range(world)]
    yield groups
    for group in groups.values():
        for worker in group:
            ray.kill(worker)


def history(folder: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads((folder / "history.json").read_text())
    return entries


def assert_diagnostics_agree(one: Path, other: Path, names: dict[str, str]) -> None:
    """Two windows are shared out over one worker, two, and four, of which two have none."""
    for file in names.values():
        found, right = read_measurements(one / file), read_measurements(other / file)
        for name, values in right.columns.items():
            if values.dtype.kind == "f":
                np.testing.assert_allclose(found.columns[name], values, rtol=1e-2, atol=1e-3, err_msg=f"{file} {name}")
            elif name != "nonfinite":
                assert found.columns[name].tolist() == values.tolist()


def job_of(config: TrialConfig, folder: Path, cache: Path, identity: str, world: int) -> dict[str, Any]:
    job = TrialJob(
        config=config.to_dict(),
        name=config.arm,
        identity=identity,
        folder=str(folder),
        cache=str(cache),
        sweep_id=f"workers-{world}",
        gpus_per_worker=0,
    )
    return job.as_dict()


@pytest.mark.parametrize(
    ("stage", "precision", "first"),
    [(1, "bf16", 1e-4), (2, "bf16", 1e-4), (3, "bf16", 1e-4), (2, "fp32", 1e-6), (3, "fp32", 1e-6)],
)
def test_every_zero_stage_trains_alike_among_two_workers(
    stage: int,
    precision: str,
    first: float,
    worker_groups: dict[int, list[Any]],
    small_trial: TrialMaker,
    make_context: ContextMaker,
    token_caches: Path,
) -> None:
    import ray

    trial = {"checkpoint_every": 0, "zero_stage": stage, "precision": precision, "micro_rows": 2}
    config = small_trial("state_passing", steps=5, rows=8, trial=trial)
    alone = make_context("alone")
    train(config, alone)
    shared = dataclasses.replace(config.trial, workers=2, activation_checkpointing=True)
    folder = make_context("shared").folder
    identity = f"stage-{stage}-{precision}"
    job = job_of(dataclasses.replace(config, trial=shared), folder, token_caches, identity, 2)
    ray.get([worker.train.remote(job) for worker in worker_groups[2]])
    one, two = history(alone.folder), history(folder)
    assert two[0]["loss"] == pytest.approx(one[0]["loss"], rel=first)
    assert [entry["loss"] for entry in two] == pytest.approx([entry["loss"] for entry in one], rel=1e-3)


@pytest.mark.parametrize(("arm", "intervention", "mode"), ARMS)
def test_workers_and_micro_batches_train_alike(
    arm: str,
    intervention: dict[str, Any],
    mode: str,
    worker_groups: dict[int, list[Any]],
    small_trial: TrialMaker,
    make_context: ContextMaker,
    token_caches: Path,
) -> None:
    import ray

    config = small_trial(
        arm,
        steps=STEPS,
        rows=8,
        intervention=intervention,
        trial={"checkpoint_every": 0},
        eval={"diagnostics": tuple(DIAGNOSTICS) if arm == "fitted_noise" else ()},
    )
    config = dataclasses.replace(config, bank=BankSettings(mode=mode))
    alone = make_context("alone")
    train(config, alone)
    found = [history(alone.folder)]
    for world, micro_rows in ((2, 2), (4, 0)):
        trial = dataclasses.replace(config.trial, workers=world, micro_rows=micro_rows)
        folder = make_context(f"world-{world}").folder
        job = job_of(dataclasses.replace(config, trial=trial), folder, token_caches, f"{arm}-{mode}", world)
        ray.get([worker.train.remote(job) for worker in worker_groups[world]])
        found.append(history(folder))
        # Every worker made the same number of steps, or the collectives would have hung; the record is the first's.
        result = json.loads((folder / "result.json").read_text())
        assert result["workers"] == world
        if arm == "fitted_noise":
            assert set(DIAGNOSTICS) <= set(result["diagnostics"])
            assert_diagnostics_agree(folder, alone.folder, result["diagnostics"])
    for entries in found[1:]:
        assert len(entries) == STEPS
        for key, first, later in (("loss", 1e-6, 1e-3), ("state_rms", 1e-6, 1e-3)):
            assert entries[0][key] == pytest.approx(found[0][0][key], rel=first)
            assert [entry[key] for entry in entries] == pytest.approx([entry[key] for entry in found[0]], rel=later)
