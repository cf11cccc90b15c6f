"""What Ray Tune starts for each trial: the training loop in place, or a Ray Train worker group around the same loop.

The sweep's driver imports this module to hand it to Tune: torch and DeepSpeed are imported in the trial's process only.
"""

import dataclasses
import json
import os
import socket
import traceback
import uuid
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workers.bank_plan import bank_shards
from workers.settings import TrialConfig
from workers.trial_files import FAILURE, PROCESS

if TYPE_CHECKING:
    from ray.tune import PlacementGroupFactory
    from ray.tune.experiment import Trial

    from storage.bank.contract import StateBank
    from storage.bank.layout import BankLayout
    from workers.context import TrialContext

DRIVER_RESOURCE = "sweep_driver"
"""Custom resource of the node that hosts the drivers of trials with a worker group (see cluster.yaml)."""


@dataclass(frozen=True, kw_only=True)
class TrialJob:
    """What a trial's process is told, as plain values that travel through Tune."""

    config: dict[str, Any]
    name: str
    identity: str
    folder: str
    cache: str
    sweep_id: str
    gpus_per_worker: int

    def as_dict(self) -> dict[str, Any]:
        """Plain dictionary for Tune's parameter space."""
        return dataclasses.asdict(self)


def trial_name(trial: "Trial") -> str:
    """A trial's name in Ray: that of its folder."""
    name: str = trial.config["job"]["name"]
    return name


def trial_resources(config: dict[str, Any]) -> "PlacementGroupFactory":
    """What Tune reserves for a trial: its worker itself, or only the driver of a worker group."""
    from ray.tune import PlacementGroupFactory

    job = TrialJob(**config["job"])
    trial = TrialConfig.from_dict(job.config).trial
    if trial.workers > 1:
        return PlacementGroupFactory([{DRIVER_RESOURCE: 1}])
    return PlacementGroupFactory([{"CPU": trial.threads, "GPU": job.gpus_per_worker}])


def run_trial(config: dict[str, Any]) -> None:
    """Tune's trainable; `config["job"]` is a TrialJob.

    A failure is written into the trial's folder and raised, so that Tune tries again. Steps that are not finite are
    only written: the same seeds would meet them again.
    """
    job = TrialJob(**config["job"])
    folder = Path(job.folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FAILURE).unlink(missing_ok=True)
    (folder / PROCESS).write_text(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}))
    try:
        if TrialConfig.from_dict(job.config).trial.workers == 1:
            _run_here(job)
        else:
            _run_worker_group(job)
    except Exception as error:
        story = traceback.format_exc()
        (folder / FAILURE).write_text(f"{type(error).__name__}: {_reason(error)}\n\n{story}")
        # By name: from a worker group the error arrives as text within another.
        if "NonFiniteStep: " not in story:
            raise


def _reason(error: Exception) -> str:
    """The line that says why: the first, or the last where the first only announces a worker's traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    return lines[-1] if lines[0].endswith(":") else lines[0]


def _run_here(job: TrialJob) -> None:
    import torch
    from ray import tune

    from workers.context import TrialContext, join_alone
    from workers.trial import train

    join_alone()
    device = torch.device("cuda", 0) if job.gpus_per_worker else torch.device("cpu")
    context = TrialContext(
        folder=Path(job.folder),
        cache=Path(job.cache),
        identity=job.identity,
        device=device,
        report=tune.report,
    )
    context.open_bank = partial(_open_bank, job, context)
    train(TrialConfig.from_dict(job.config), context)


def _run_worker_group(job: TrialJob) -> None:
    from ray import train as ray_train
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.tune.integration.ray_train import TuneReportCallback

    trial = TrialConfig.from_dict(job.config).trial
    trainer = TorchTrainer(
        _run_worker,
        train_loop_config=job.as_dict(),
        torch_config=TorchConfig(backend="nccl" if job.gpus_per_worker else "gloo"),
        scaling_config=ray_train.ScalingConfig(
            num_workers=trial.workers,
            use_gpu=bool(job.gpus_per_worker),
            resources_per_worker={"CPU": trial.threads, **({"GPU": 1} if job.gpus_per_worker else {})},
        ),
        run_config=ray_train.RunConfig(
            name="train",
            storage_path=str(Path(job.folder) / "ray"),
            callbacks=[TuneReportCallback()],  # type: ignore[list-item]
            # Tune retries the whole trial; a controller that retries for ever would hide a failure.
            failure_config=ray_train.FailureConfig(max_failures=0, controller_failure_limit=0),  # type: ignore[call-arg]
        ),
    )
    trainer.fit()


def _run_worker(job_values: dict[str, Any]) -> None:
    from ray import train as ray_train
    from ray.train.torch import get_device

    from workers.context import TrialContext
    from workers.trial import train

    job = TrialJob(**job_values)
    group = ray_train.get_context()
    context = TrialContext(
        folder=Path(job.folder),
        cache=Path(job.cache),
        identity=job.identity,
        rank=group.get_world_rank(),
        world=group.get_world_size(),
        device=get_device(),
        report=ray_train.report,
    )
    context.open_bank = partial(_open_bank, job, context)
    train(TrialConfig.from_dict(job.config), context)


def bank_namespace(sweep_id: str) -> str:
    """Ray namespace of a sweep's banks: the whole id, so that two folders of one sweep on one cluster never meet."""
    return f"bank-{sweep_id}"


def shard_nodes(layout: "BankLayout", shards: int, worker_nodes: list[str]) -> list[str]:
    """The node of each shard: that of the worker which owns the shard's first row.

    Args:
        layout: of the bank; worker w of W owns the rows from w * G // W on.
        shards: S; S = W gives every worker the shard of its own rows.
        worker_nodes: (W,) Ray node of each worker, by rank.
    """
    first_rows = [layout.shard_range(shard, shards)[0] for shard in range(shards)]
    return [worker_nodes[row * len(worker_nodes) // layout.rows] for row in first_rows]


def _open_bank(job: TrialJob, context: "TrialContext", layout: "BankLayout") -> "StateBank":
    """The trial's sharded bank: the first worker starts the actors, the others connect to them by name."""
    import ray

    from storage.bank.sharded import connect_sharded_bank, start_sharded_bank

    shards = bank_shards(TrialConfig.from_dict(job.config))
    namespace = bank_namespace(job.sweep_id)
    nodes = context.gather(ray.get_runtime_context().get_node_id())
    # A retried trial must not meet the actors of its dead predecessor.
    attempt = context.gather(f"{job.identity[:16]}-{uuid.uuid4().hex[:8]}")[0]
    bank: StateBank | None = None
    if context.is_first:
        where = shard_nodes(layout, shards, nodes)
        bank = start_sharded_bank(layout, shards=shards, namespace=namespace, trial=attempt, node_ids=where)
    context.barrier()
    return bank or connect_sharded_bank(namespace, attempt)
