"""Training speed of the chunked Mamba-2 scan on a GPU, beside the loop over time, forward and backward, in one run.

Needs a CUDA GPU and nothing but torch, numpy and this repository: `python -m benchmarks.gpu_training`.
"""

import time

import torch

from models.loss import cross_entropy_sum
from models.registry import build_model
from models.settings import ModelSettings

CASES = (
    ("demo", "naive", 48, 64),
    ("demo", "chunked", 48, 64),
    ("130m", "chunked", 8, 2048),
    ("370m", "chunked", 4, 2048),
)
REPEATS = 5


def seconds_per_step(size: str, scan: str, rows: int, context: int, dtype: torch.dtype) -> float:
    """Median seconds of a forward and backward pass with the loss, from a non-zero initial state."""
    model = build_model(ModelSettings(size=size, scan=scan), 256, seed=0).to("cuda", dtype)
    tokens = torch.randint(256, (rows, context + 1), device="cuda")
    state = [{name: torch.randn_like(part) * 0.1 for name, part in layer.items()} for layer in model.zero_state(rows)]
    found = []
    for _ in range(REPEATS + 2):
        torch.cuda.synchronize()
        started = time.perf_counter()
        hidden, _ = model(tokens[:, :-1], state)
        nll_sum, count = cross_entropy_sum(hidden, tokens[:, 1:], model)
        (nll_sum / count).backward()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - started)
        model.zero_grad()
    return sorted(found[2:])[REPEATS // 2]


def main() -> None:
    """Print the table."""
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print("| model | scan | dtype | rows x context | step | tokens/s | peak memory |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: |")
    for size, scan, rows, context in CASES:
        for dtype in (torch.float32, torch.bfloat16):
            torch.cuda.reset_peak_memory_stats()
            seconds = seconds_per_step(size, scan, rows, context, dtype)
            peak = torch.cuda.max_memory_allocated() / 2**30
            name = str(dtype).removeprefix("torch.")
            speed = f"{seconds * 1000:.0f} ms | {rows * context / seconds:,.0f}"
            print(f"| {size} | {scan} | {name} | {rows} x {context} | {speed} | {peak:.1f} GiB |", flush=True)


if __name__ == "__main__":
    main()
