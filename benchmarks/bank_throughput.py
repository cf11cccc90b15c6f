"""Bank deposit and withdraw in GB/s beside a plain copy of the same bytes, in one run.

    python -m benchmarks.bank_throughput [--repeats 9] [--wire fp32] > table.md

Each round times, for one generation of 4, 64 and 256 MB: `np.copyto` between two warm buffers; `deposit` until it
returns (what the training loop waits for) and until it is stored (`flush`); `withdraw` into a warm buffer; the same
in process. Rounds alternate, the table gives medians, and ratios are of medians. Wire bytes in bf16 are half of these.
"""

import argparse
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import numpy as np
import ray

from benchmarks.markdown import header
from storage.bank.contract import StateBank
from storage.bank.in_process import InProcessBank
from storage.bank.layout import BankLayout, Float32
from storage.bank.sharded import start_sharded_bank

SIZES_MB = (4, 64, 256)
ROWS = 32
_WARM_UP = 6

Timings = dict[str, list[float]]


def timed(times: Timings, name: str, call: Callable[[], object]) -> None:
    began = time.perf_counter()
    call()
    times.setdefault(name, []).append(time.perf_counter() - began)


def measure_bank(times: Timings, bank: StateBank, kind: str, step: int, states: Float32, out: Float32) -> None:
    """One generation in and out. The bank must have been used for the steps before."""
    rows = np.arange(ROWS)
    began = time.perf_counter()
    timed(times, f"{kind} deposit, returns", lambda: bank.deposit(step, rows, states))
    bank.flush()
    times.setdefault(f"{kind} deposit, stored", []).append(time.perf_counter() - began)
    timed(times, f"{kind} withdraw", lambda: bank.withdraw(step + 1, rows, out))
    if bank.layout.wire_dtype == "fp32" and not np.array_equal(out, states):
        raise RuntimeError(f"{kind} returned other states than were deposited")


def measure(megabytes: int, shards: int, wire: str, repeats: int) -> Timings:
    """Seconds of every repeat, by name of what was timed."""
    layout = BankLayout(rows=ROWS, elements=megabytes * 1_000_000 // (4 * ROWS), wire_dtype=wire)
    states = np.random.default_rng(0).standard_normal((ROWS, layout.elements), dtype=np.float32)
    out, times = np.zeros_like(states), Timings()
    sharded = start_sharded_bank(layout, shards, "benchmark", f"{megabytes}-{shards}")
    with sharded, InProcessBank(layout) as in_process:
        for step in range(_WARM_UP + repeats):
            if step == _WARM_UP:
                times.clear()
            timed(times, "np.copyto", lambda: np.copyto(out, states))
            measure_bank(times, sharded, f"sharded ({shards})", step, states, out)
            measure_bank(times, in_process, "in process", step, states, out)
    return times


def report(wire: str, repeats: int) -> None:
    print(header(f"State bank throughput, {wire} on the wire, medians of {repeats}"))
    print("| MB of fp32 state | what | ms | GB/s | of np.copyto |\n| --- | --- | --- | --- | --- |")
    for megabytes in SIZES_MB:
        for shards in (1, 2):
            times = measure(megabytes, shards, wire, repeats)
            copy = statistics.median(times["np.copyto"])
            for name, seconds in times.items():
                if shards == 2 and not name.startswith("sharded"):
                    continue
                median = statistics.median(seconds)
                rate = megabytes / 1000 / median
                print(f"| {megabytes} | {name} | {median * 1000:.2f} | {rate:.2f} | {copy / median:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9, help="rounds that are timed, per size (default 9)")
    parser.add_argument("--wire", choices=("fp32", "bf16"), default="fp32", help="precision on the wire (default fp32)")
    options = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        ray.init(
            address="local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, _temp_dir=folder
        )
        try:
            report(options.wire, options.repeats)
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main()
