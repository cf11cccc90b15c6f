"""Speed of training steps on GPUs, beside bare loops on the raw kernels: for benchmarks/gpu_check.py."""

import os
import socket
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.gpu_bare import BARE
from benchmarks.markdown import table
from models.interface import RecurrentLanguageModel
from models.loss import cross_entropy_sum
from models.registry import build_model
from models.settings import ModelSettings

VOCABULARY = 50277
REPEATS, WARM_UP = 7, 3
AIM = 0.95
CASES = (
    ("mamba2", "130m", 8, 2048),
    ("mamba2", "370m", 4, 2048),
    ("mamba1", "130m", 4, 2048),
    ("gla", "340m", 4, 2048),
)
"""Architecture, size, rows, context."""


def seconds_of(steps: Mapping[str, Callable[[], None]]) -> dict[str, float]:
    """Median seconds of each step; they alternate, so that a busy moment hits all of them."""
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(WARM_UP + REPEATS):
        for name, step in steps.items():
            torch.cuda.synchronize()
            started = time.perf_counter()
            step()
            torch.cuda.synchronize()
            taken[name].append(time.perf_counter() - started)
    return {name: statistics.median(values[WARM_UP:]) for name, values in taken.items()}


def step_of(model: RecurrentLanguageModel, tokens_BT1: Tensor) -> None:
    """A forward and a backward pass of one of our models with its loss."""
    hidden, _ = model(tokens_BT1[:, :-1])
    nll_sum, count = cross_entropy_sum(hidden, tokens_BT1[:, 1:], model)
    (nll_sum / count).backward()
    model.zero_grad(set_to_none=True)


def speed() -> tuple[str, bool]:
    """The table; always true, for a speed is a figure and no verdict."""
    lines = []
    for architecture, size, rows, context in CASES:
        model = build_model(ModelSettings(architecture=architecture, size=size, kernel="fused"), VOCABULARY, seed=0)
        model = model.in_precision(torch.bfloat16).to("cuda")
        tokens = torch.randint(VOCABULARY, (rows, context + 1), device="cuda")
        steps = {"ours": partial(step_of, model, tokens), "bare loop": partial(BARE[architecture](model).step, tokens)}
        seconds, peaks = seconds_of(steps), {}
        for name, step in steps.items():
            torch.cuda.reset_peak_memory_stats()
            step()
            peaks[name] = torch.cuda.max_memory_allocated() / 2**30
        for name, taken in seconds.items():
            share = f"{100 * seconds['bare loop'] / taken:.0f} %"
            speed_of = f"{rows * context / taken:,.0f}"
            lines.append(
                [f"{architecture} {size} {name}", f"{rows} x {context}", speed_of, share, f"{peaks[name]:.1f} GiB"]
            )
    columns = ["model", "rows x context", "tokens/s", "of the bare loop", "peak memory"]
    return table(columns, lines) + f"\nAim: {AIM:.0%} of the bare loop.\n", True


def several_gpus() -> tuple[str, bool]:
    """Tokens a second of one GPU and of all, with as many rows a GPU."""
    found = torch.cuda.device_count()
    results = torch.multiprocessing.get_context("spawn").Queue()
    lines, alone = [], 0.0
    for world in (1, found):
        port = _free_port()
        torch.multiprocessing.spawn(_data_parallel, (world, port, results), nprocs=world)
        tokens = results.get()
        alone = alone or tokens
        lines.append([world, f"{tokens:,.0f}", f"{tokens / alone / world:.2f}"])
    return table(["GPUs", "tokens/s", "of linear"], lines), True


def _data_parallel(rank: int, world: int, port: int, results: "torch.multiprocessing.Queue[float]") -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(world)}
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl")
    architecture, size, rows, context = CASES[0]
    built = build_model(ModelSettings(architecture=architecture, size=size, kernel="fused"), VOCABULARY, seed=0)
    model = nn.parallel.DistributedDataParallel(built.in_precision(torch.bfloat16).to("cuda"), device_ids=[rank])
    tokens = torch.randint(VOCABULARY, (rows, context + 1), device="cuda")

    def step() -> None:
        hidden, _ = model(tokens[:, :-1])
        nll_sum, count = cross_entropy_sum(hidden, tokens[:, 1:], built)
        (nll_sum / count).backward()
        model.zero_grad(set_to_none=True)

    seconds = seconds_of({"step": step})["step"]
    if rank == 0:
        results.put(world * rows * context / seconds)
    torch.distributed.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
