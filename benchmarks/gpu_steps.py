"""Speed of training steps on GPUs, beside bare loops on the raw kernels: for benchmarks/gpu_check.py."""

import os
import socket
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.markdown import table
from models.interface import RecurrentLanguageModel, State
from models.loss import cross_entropy_sum
from models.registry import build_model
from models.settings import ModelSettings

VOCABULARY = 50277
REPEATS, WARM_UP = 7, 3
AIM = 0.95
CASES = (("mamba2", "130m", 8, 2048), ("mamba2", "370m", 4, 2048), ("mamba1", "130m", 4, 2048))
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


def step_of(model: RecurrentLanguageModel, tokens_BT1: Tensor, state: State | None = None) -> None:
    """A forward and a backward pass of one of our models with its loss."""
    hidden, _ = model(tokens_BT1[:, :-1], state)
    nll_sum, count = cross_entropy_sum(hidden, tokens_BT1[:, 1:], model)
    (nll_sum / count).backward()
    model.zero_grad(set_to_none=True)


class BareMamba2(nn.Module):
    """The weights of one of our Mamba-2 models, run by nothing but the raw kernels, from zero state."""

    def __init__(self, model: RecurrentLanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Hidden vectors (B, T, D)."""
        backbone: Any = self.model.backbone
        x: Tensor = backbone.embedding(tokens_BT).float()
        for block in backbone.layers:
            x = x + self.mixer(block.mixer, _rms(x, block.norm.weight, block.norm.eps))
        return _rms(x, backbone.norm_f.weight, backbone.norm_f.eps)

    def mixer(self, mixer: Any, u: Tensor) -> Tensor:
        """Projection, convolution, scan, gated norm, projection."""
        from causal_conv1d import causal_conv1d_fn
        from mamba_ssm.ops.triton.layernorm_gated import rmsnorm_fn
        from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

        d = mixer.dims
        z, xBC, dt = mixer.in_proj(u).split([d.d_inner, d.conv_channels, d.n_heads], dim=-1)
        weight, bias = mixer.conv1d.weight.squeeze(1), mixer.conv1d.bias
        xBC = causal_conv1d_fn(xBC.transpose(1, 2), weight, bias, activation="silu").transpose(1, 2)
        x, B, C = xBC.split([d.d_inner, d.ngroups * d.d_state, d.ngroups * d.d_state], dim=-1)
        B, C = B.unflatten(-1, (d.ngroups, -1)), C.unflatten(-1, (d.ngroups, -1))
        y = mamba_chunk_scan_combined(
            x.unflatten(-1, (d.n_heads, -1)), dt, -torch.exp(mixer.A_log.float()), B, C, chunk_size=256,
            D=mixer.D.float(), dt_bias=mixer.dt_bias.float(), dt_softplus=True,
        )  # fmt: skip
        gated = rmsnorm_fn(y.flatten(2), mixer.norm.weight, None, z, eps=d.norm_eps, norm_before_gate=False)
        return mixer.out_proj(gated)


def _rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight.float(), eps).to(weight.dtype)


def bare_step(bare: BareMamba2, tokens_BT1: Tensor) -> None:
    """A forward and a backward pass of the bare loop, with torch's own loss on whole logits."""
    logits = bare.model.head(bare(tokens_BT1[:, :-1]))
    F.cross_entropy(logits.flatten(0, 1), tokens_BT1[:, 1:].flatten()).backward()
    bare.zero_grad(set_to_none=True)


def speed() -> tuple[str, bool]:
    """The table; always true, for a speed is a figure and no verdict."""
    lines = []
    for architecture, size, rows, context in CASES:
        model = build_model(ModelSettings(architecture=architecture, size=size, kernel="fused"), VOCABULARY, seed=0)
        model = model.to("cuda", torch.bfloat16)
        tokens = torch.randint(VOCABULARY, (rows, context + 1), device="cuda")
        steps = {"ours": partial(step_of, model, tokens)}
        if architecture == "mamba2":
            steps["bare loop"] = partial(bare_step, BareMamba2(model), tokens)
        seconds, peaks = seconds_of(steps), {}
        for name, step in steps.items():
            torch.cuda.reset_peak_memory_stats()
            step()
            peaks[name] = torch.cuda.max_memory_allocated() / 2**30
        for name, taken in seconds.items():
            share = f"{100 * seconds['bare loop'] / taken:.0f} %" if "bare loop" in seconds else "-"
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
    model = nn.parallel.DistributedDataParallel(built.to("cuda", torch.bfloat16), device_ids=[rank])
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
