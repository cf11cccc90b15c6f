"""What a key costs: keyed normals beside torch's own fill of as many, in alternating pairs within one process."""

import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from benchmarks.markdown import header, table
from workers.randomness import keyed_normals

REPEATS = 41
SHAPES = ((48, 32_768), (24, 32_768), (8, 524_288), (4, 4_718_592))
"""(rows, elements of a row): the demo, noise_scale's demo, a 64th and a quarter of mamba2-130m's state."""


def seconds(call: Callable[[], object]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _fill(count: int, elements: int) -> torch.Tensor:
    return torch.empty(count, elements).normal_()


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print(header("Keyed noise beside torch's own normals, one thread"))
    rows = []
    for count, elements in SHAPES:
        numbers = np.arange(count)
        fill, keyed = [], []
        for step in range(REPEATS):
            fill.append(seconds(partial(_fill, count, elements)))
            keyed.append(seconds(partial(keyed_normals, "noise", 0, step, numbers, elements)))
        ratios = sorted(keyed_s / fill_s for keyed_s, fill_s in zip(keyed, fill, strict=True))
        rows.append(
            [
                f"{count} x {elements:,}",
                f"{statistics.median(fill) * 1000:.2f} ms",
                f"{statistics.median(keyed) * 1000:.2f} ms",
                f"{statistics.median(ratios):.3f}",
                f"{ratios[len(ratios) // 4]:.3f} to {ratios[3 * len(ratios) // 4]:.3f}",
            ]
        )
    print(table(["rows x elements", "torch fill", "keyed", "median ratio", "middle half of the pairs"], rows))


if __name__ == "__main__":
    main()
