"""Speed of the scans beside reference scans that others wrote, forward and backward with an initial state, in one run.

    python -m benchmarks.scan_speed [--threads 1] [--repeats 7] [--scans gla rwkv6 "rwkv6 strong"] [--lengths 256 2048]
        [--mamba-ssm FOLDER]

Each contender reads the same inputs and gives back gradients of all of them, of the initial state too, from given
gradients of outputs and final state; the run stops if outputs or gradients differ. Contenders take turns in every
round. Times are processor times, which other programs disturb less than wall time; ratios are given of the medians and
of the best rounds. A batch has 2048 tokens. The last table compares one row of 8192 tokens with 32 rows of 256.

"mamba1 from zero" has no initial state, as its rivals know none, and runs at 256 only: they take time that grows with
the square of the length, half a minute a round already there. One of them is the reference of mamba_ssm, which cannot
be imported without CUDA: name a folder with its unpacked source, or the row is left out.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.markdown import header, table
from benchmarks.others import fla_gla, fla_rwkv6
from benchmarks.selective_rivals import mamba_ssm_reference, mambapy_pscan, selective_inputs, transformers_scan
from models.scans.gated import gated_chunked
from models.scans.selective import selective_chunked

TOKENS = 2048
Scan = Callable[..., tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Contest:
    """A scan, those it is compared with, and how to make its inputs."""

    scan: Scan
    rivals: dict[str, Scan]
    inputs: Callable[[int, int], list[Tensor]]
    """(rows, length) -> leaves, in the order of the scan's arguments."""
    longest: int = 8192
    """Longer rows are left out."""


def gla(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Our scan of GLA with fla's scale."""
    return gated_chunked(*inputs, scale=inputs[0].shape[3] ** -0.5)


def rwkv6(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Our scan of RWKV-6."""
    *others, bonus_HK = inputs
    return gated_chunked(*others, bonus_HK=bonus_HK)


def gla_inputs(rows: int, length: int) -> list[Tensor]:
    """q, k, v, g, h0 for 4 heads of 16 by 32, with the decays that GLA has at initialisation."""
    q, k, v, h0, generator = _random_inputs(rows, length, heads=4, keys=16, values=32)
    g = torch.nn.functional.logsigmoid(torch.randn(q.shape, generator=generator)) / 16
    return [value.requires_grad_() for value in (q, k, v, g, h0)]


def rwkv6_inputs(strongest: float) -> Callable[[int, int], list[Tensor]]:
    """q, k, v, g, h0, bonus for 4 heads of 32 by 32; log-decays are -exp(x), x from -6 to `strongest` by channel."""

    def inputs(rows: int, length: int) -> list[Tensor]:
        q, k, v, h0, generator = _random_inputs(rows, length, heads=4, keys=32, values=32)
        x_HK = torch.linspace(-6, strongest, 4 * 32).view(4, 32)
        g = -torch.exp(x_HK + 0.1 * torch.randn(q.shape, generator=generator))
        bonus = torch.randn(4, 32, generator=generator)
        return [value.requires_grad_() for value in (q, k, v, g, h0, bonus)]

    return inputs


CONTESTS = {
    "gla": Contest(gla, {"fla naive": fla_gla}, gla_inputs),
    "rwkv6": Contest(rwkv6, {"fla naive": fla_rwkv6}, rwkv6_inputs(-1.0)),
    "rwkv6 strong": Contest(rwkv6, {"fla naive": fla_rwkv6}, rwkv6_inputs(2.0)),
    "mamba1": Contest(selective_chunked, {"mambapy": mambapy_pscan}, selective_inputs(0.1, with_state=True)),
    "mamba1 strong": Contest(selective_chunked, {"mambapy": mambapy_pscan}, selective_inputs(5.0, with_state=True)),
    "mamba1 from zero": Contest(
        selective_chunked,
        {"transformers": transformers_scan},
        selective_inputs(0.1, with_state=False),
        longest=256,
    ),
}


def _random_inputs(
    rows: int, length: int, heads: int, keys: int, values: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, torch.Generator]:
    generator = torch.Generator().manual_seed(length)
    q, k = torch.randn(2, rows, length, heads, keys, generator=generator)
    v = torch.randn(rows, length, heads, values, generator=generator)
    h0 = torch.randn(rows, heads, keys, values, generator=generator)
    return q, k, v, h0, generator


def step(scan: Scan, inputs: list[Tensor]) -> list[Tensor]:
    """Outputs, final state and gradients of every input."""
    outputs = scan(*inputs)
    ones = [torch.ones_like(value) for value in outputs]
    return [*(value.detach() for value in outputs), *torch.autograd.grad(outputs, inputs, ones)]


def check(name: str, found: list[Tensor], right: list[Tensor]) -> None:
    """Stop if two contenders do not compute the same."""
    error = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, right, strict=True))
    if error > 1e-4:
        raise RuntimeError(f"our scan differs from {name} by {error:.1e}")


def processor_seconds(steps: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Processor seconds of each step in each round, the steps taking turns."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, run in steps.items():
            began = time.process_time()
            run()
            seconds[name].append(time.process_time() - began)
    return seconds


def compare(name: str, length: int, repeats: int) -> list[list[object]]:
    """A row for every rival of a scan."""
    contest = CONTESTS[name]
    inputs = contest.inputs(max(1, TOKENS // length), length)
    ours = step(contest.scan, inputs)
    for rival, scan in contest.rivals.items():
        check(rival, ours, step(scan, inputs))
    contenders = {"ours": contest.scan, **contest.rivals}
    seconds = processor_seconds({key: partial(step, scan, inputs) for key, scan in contenders.items()}, repeats)
    median = {key: statistics.median(values) for key, values in seconds.items()}
    shape = f"{inputs[0].shape[0]} x {length}"
    return [
        [
            name,
            rival,
            shape,
            f"{inputs[0].shape[0] * length / median['ours']:.0f}",
            f"{median[rival] / median['ours']:.1f}",
            f"{min(seconds[rival]) / min(seconds['ours']):.1f}",
        ]
        for rival in contest.rivals
    ]


def long_over_short(name: str, repeats: int) -> list[object]:
    """One row: tokens/s of one row of 8192 over that of 32 rows of 256."""
    contest = CONTESTS[name]
    batches = {length: contest.inputs(8192 // length, length) for length in (256, 8192)}
    steps: dict[str, Callable[[], object]] = {
        str(length): partial(step, contest.scan, inputs) for length, inputs in batches.items()
    }
    seconds = processor_seconds(steps, repeats)
    median = {key: statistics.median(values) for key, values in seconds.items()}
    return [
        name,
        *(f"{8192 / value:.0f}" for value in median.values()),
        f"{median['256'] / median['8192']:.2f}",
        f"{min(seconds['256']) / min(seconds['8192']):.2f}",
    ]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--repeats", type=int, default=7, help="rounds per row")
    parser.add_argument("--scans", nargs="+", choices=CONTESTS, default=list(CONTESTS))
    parser.add_argument("--lengths", nargs="+", type=int, default=[256, 2048], help="row lengths")
    parser.add_argument("--mamba-ssm", type=Path, metavar="FOLDER", help="unpacked source of mamba_ssm")
    options = parser.parse_args()
    if options.mamba_ssm is not None:
        CONTESTS["mamba1 from zero"].rivals["mamba_ssm ref"] = mamba_ssm_reference(options.mamba_ssm)
    torch.set_num_threads(options.threads)
    print(header(f"Speed of the scans, {options.threads} thread(s)"))
    if options.mamba_ssm is None and "mamba1 from zero" in options.scans:
        print("mamba_ssm's reference is left out: no --mamba-ssm\n")
    pairs = [(name, n) for name in options.scans for n in options.lengths if n <= CONTESTS[name].longest]
    rows = [row for name, n in pairs for row in compare(name, n, options.repeats)]
    columns = ["scan", "rival", "batch", "tokens/s", "times faster (medians)", "times faster (best)"]
    print(table(columns, rows), flush=True)
    long_rows = [long_over_short(name, options.repeats) for name in options.scans if CONTESTS[name].longest >= 8192]
    if long_rows:
        print(
            table(
                ["scan", "tokens/s at 32 x 256", "tokens/s at 1 x 8192", "ratio (medians)", "ratio (best)"], long_rows
            )
        )


if __name__ == "__main__":
    main()
