"""Where and among whom one worker of a trial runs: what hardware decides, and never the trial's configuration."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from storage.bank.contract import StateBank
from storage.bank.in_process import InProcessBank
from storage.bank.layout import BankLayout

Report = Callable[[dict[str, Any]], None]


def _silent(metrics: dict[str, Any]) -> None:
    """Report to nobody."""


def _in_process_bank(layout: BankLayout) -> StateBank:
    return InProcessBank(layout)


@dataclass
class TrialContext:
    """One worker's place. The same `train(config, context)` runs in a Tune trial and in a Ray Train worker group."""

    folder: Path
    """The trial's folder, on storage that all its workers see."""
    cache: Path
    """Folder of the token caches, shared by trials."""
    identity: str
    """The trial's identity: a checkpoint of another one is refused."""
    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    report: Report = _silent
    """Called on every worker with the same keys, equally often."""
    open_bank: Callable[[BankLayout], StateBank] = _in_process_bank

    @property
    def is_first(self) -> bool:
        """Whether this worker writes the trial's files."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait for all workers of the trial."""
        if self.world > 1:
            dist.barrier()

    def sum_over_workers(self, values: Sequence[float]) -> list[float]:
        """Sums over the workers of each of these numbers, in float64."""
        if self.world == 1:
            return list(values)
        device = self.device if dist.get_backend() == "nccl" else torch.device("cpu")
        totals = torch.tensor(values, dtype=torch.float64, device=device)
        dist.all_reduce(totals)
        return totals.tolist()

    def gather(self, value: Any) -> list[Any]:
        """Every worker's value, in rank order, on every worker."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values


def join_alone() -> None:
    """Make this process a world of one, without a port, unless it is in a process group already.

    The group is never left again in this process: DeepSpeed keeps references to it.
    """
    # DeepSpeed reads these instead of asking the process group.
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
