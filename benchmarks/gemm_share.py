"""How near each model comes to the machine's rate of matrix products, and what holds it back.

    python -m benchmarks.gemm_share [--threads 1] [--rounds 9]

A training step of each architecture's demo size, forward and backward with an initial state, beside a large square
matrix product in alternation. The share counts the multiplications and additions of the step's matrix products (as
torch's FlopCounterMode sees them, those inside the scans too) per second, over the rate of the large product. What
holds a model back is the processor time of all else, by operation.
"""

import argparse
import statistics
import time
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.markdown import header, table
from models.interface import RecurrentLanguageModel, State
from models.loss import cross_entropy_sum
from models.registry import ARCHITECTURES, build_model
from models.settings import ModelSettings

ROWS, LENGTH, VOCABULARY = 48, 64, 256
SQUARE = 1024
PRODUCTS = {"aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::baddbmm_", "aten::addmv_"}


def baddbmm_flops(total: Any, a: Any, b: Any, *rest: Any, **named: Any) -> int:
    """Of the in-place form, which the counter does not know; shapes (B, M, K) and (B, K, N)."""
    return int(2 * a[0] * a[1] * a[2] * b[2])


class Step:
    """One training step of a model from given states."""

    def __init__(self, architecture: str) -> None:
        generator = torch.Generator().manual_seed(0)
        settings = ModelSettings(architecture=architecture)
        self.model: RecurrentLanguageModel = build_model(settings, VOCABULARY, seed=0)
        self.tokens_BT: Tensor = torch.randint(VOCABULARY, (ROWS, LENGTH + 1), generator=generator)
        self.state: State = [
            {name: torch.randn(part.shape, generator=generator) for name, part in layer.items()}
            for layer in self.model.zero_state(ROWS)
        ]

    def __call__(self) -> None:
        """Forward, loss, backward."""
        self.model.zero_grad()
        hidden, _ = self.model(self.tokens_BT[:, :-1], self.state)
        total, count = cross_entropy_sum(hidden, self.tokens_BT[:, 1:], self.model)
        (total / count).backward()

    def product_flops(self) -> int:
        """Multiplications and additions in the matrix products of one step."""
        with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.baddbmm_: baddbmm_flops}) as counter:
            self()
        return counter.get_total_flops()

    def costs(self) -> str:
        """Share of the step's processor time in products, and the three largest others."""
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            self()
        events = {event.key: event.self_cpu_time_total for event in profile.key_averages()}
        whole = sum(events.values())
        products = sum(spent for name, spent in events.items() if name in PRODUCTS)
        others = sorted((spent, name) for name, spent in events.items() if name not in PRODUCTS)[::-1][:3]
        shares = [f"products {products / whole:.0%}"]
        shares += [f"{name.removeprefix('aten::')} {spent / whole:.0%}" for spent, name in others]
        return ", ".join(shares)


def seconds(call: Any) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
    parser.add_argument("--rounds", type=int, default=9, help="rounds that are timed (default 9)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(header(f"Share of the rate of matrix products, {options.threads} thread(s), {options.rounds} rounds"))
    square = torch.randn(SQUARE, SQUARE, generator=torch.Generator().manual_seed(0))
    out = torch.empty_like(square)
    lines = []
    for architecture in ARCHITECTURES:
        step = Step(architecture)
        flops = step.product_flops()
        rates, gemms = [], []
        for _ in range(options.rounds):
            gemms.append(2 * SQUARE**3 / seconds(lambda: torch.mm(square, square, out=out)))
            rates.append(flops / seconds(step))
        share = statistics.median(rate / gemm for rate, gemm in zip(rates, gemms, strict=True))
        tokens = statistics.median(rates) / flops * ROWS * LENGTH
        lines.append(
            [
                architecture,
                f"{tokens / 1000:.1f}k",
                f"{flops / (ROWS * LENGTH) / 1e6:.2f}",
                f"{statistics.median(rates) / 1e9:.0f}",
                f"{statistics.median(gemms) / 1e9:.0f}",
                f"{share:.0%}",
                step.costs(),
            ]
        )
    titles = ["model", "tokens/s", "MFLOP per token", "GFLOP/s", "product of 1024", "share", "processor time"]
    print(table(titles, lines))


if __name__ == "__main__":
    main()
