"""Evaluation speed and peak memory at 8K, 64K and 512K positions: memory must not grow with the length.

Each length runs in a process of its own, so that one peak does not hide another. The speeches of the shipped corpus are
too short for the long windows, so they are packed (`data.packing=eos`).
"""

import json
import subprocess
import sys
import tempfile
import time

from benchmarks.markdown import header, table

LENGTHS = (8192, 65536, 524288)
WINDOWS = 2


def measure(length: int, cache: str) -> None:
    """Print tokens/s and peak resident memory of one evaluation as JSON."""
    import resource

    import torch

    from models.registry import build_model
    from storage.settings import DataSettings
    from storage.token_cache import open_token_cache
    from storage.windows import evaluation_windows
    from workers.evaluations.perplexity import measure as measure_curve
    from workers.settings import EvalSettings, TrialConfig

    torch.set_num_threads(1)
    config = TrialConfig(
        arm="base", data=DataSettings(packing="eos"), eval=EvalSettings(length=length, windows=WINDOWS, chunk=1024)
    )
    model = build_model(config.model, 256, seed=0)
    windows = evaluation_windows(open_token_cache(config.data, cache), "train", length, WINDOWS)
    device = torch.device("cpu")
    short = TrialConfig(arm="base", data=config.data, eval=EvalSettings(length=2048, chunk=1024))
    warm_up = evaluation_windows(open_token_cache(config.data, cache), "train", 2048, WINDOWS)
    measure_curve(model, warm_up, "train", short, device)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    measure_curve(model, windows, "train", config, device)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"tokens_per_s": WINDOWS * length / seconds, "peak_mib": peak / 1024, "before": before / 1024}))


def main() -> None:
    """Print the table."""
    if len(sys.argv) == 3:
        measure(int(sys.argv[1]), sys.argv[2])
        return
    print(header("Evaluation speed and memory by length"))
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        for length in LENGTHS:
            command = [sys.executable, "-m", "benchmarks.evaluation", str(length), cache]
            found = json.loads(
                subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
            )
            rows.append(
                [
                    f"{length // 1024}K",
                    f"{found['tokens_per_s']:,.0f}",
                    f"{found['peak_mib']:.0f} MiB",
                    f"{found['before']:.0f} MiB",
                ]
            )
    columns = ["positions", "tokens/s (1 thread)", "peak memory of the process", "of which before it (warmed up at 2K)"]
    print(table(columns, rows))
    print(f"{WINDOWS} windows at once, chunks of 1024 tokens, demo model.")


if __name__ == "__main__":
    main()
