"""Bank deposit and withdraw beside a plain copy of the same bytes, in one run.

    python -m benchmarks.bank_throughput [--repeats 5] [--wire fp32] > benchmarks/bank_throughput.md

Each round times, for one generation of 4, 64 and 256 MB of float32: `np.copyto` between two warm buffers, at once and
by pieces (above some size the C library copies at once in a way that no copy of parts can have); `deposit` until it
returns (what the training loop waits for) and until it is stored (`flush`); `withdraw` into a warm buffer, and the same
when the shards were asked ahead (`prefetch`), as the training loop does. Rounds alternate between the kinds, so that a
busy moment hits all of them. The table gives the best round of each, the ratio of the bests, and the spread: by how
much the median and the worst round took longer than the best. Wire bytes in bf16 are half of these.
"""

import argparse
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable

import numpy as np
import ray

from benchmarks.markdown import header
from storage.bank.contract import StateBank
from storage.bank.in_process import InProcessBank
from storage.bank.layout import BankLayout, Float32
from storage.bank.sharded import start_sharded_bank

SIZES_MB = (4, 64, 256)
SHARDS = (1, 2, 3, 4)
ROWS = 48
_WARM_UP = 4
_PIECE = 1 << 20
"""Elements of a piece: 4 MiB."""

Timings = dict[str, list[float]]


def timed(times: Timings, name: str, call: Callable[[], object]) -> None:
    began = time.perf_counter()
    call()
    times.setdefault(name, []).append(time.perf_counter() - began)


def copy_by_pieces(out: Float32, states: Float32) -> None:
    """The same copy in more calls."""
    target, source = out.reshape(-1), states.reshape(-1)
    for start in range(0, source.size, _PIECE):
        np.copyto(target[start : start + _PIECE], source[start : start + _PIECE])


def measure_bank(times: Timings, bank: StateBank, kind: str, step: int, states: Float32, out: Float32) -> None:
    """One generation in and out. The bank must have been used for the steps before."""
    rows = np.arange(ROWS)
    began = time.perf_counter()
    timed(times, f"{kind}: deposit, returns", lambda: bank.deposit(step, rows, states))
    bank.flush()
    times.setdefault(f"{kind}: deposit, stored", []).append(time.perf_counter() - began)
    timed(times, f"{kind}: withdraw", lambda: bank.withdraw(step + 1, rows, out))
    if bank.layout.wire_dtype == "fp32" and not np.array_equal(out, states):
        raise RuntimeError(f"{kind} returned other states than were deposited")
    bank.prefetch(step + 1, rows)
    bank.counters()  # a call to every shard: the answers to the call before are here
    timed(times, f"{kind}: withdraw, asked ahead", lambda: bank.withdraw(step + 1, rows, out))


def measure(megabytes: int, wire: str, repeats: int) -> Timings:
    """Seconds of every repeat, by name of what was timed."""
    layout = BankLayout(rows=ROWS, elements=megabytes * 1_000_000 // (4 * ROWS), wire_dtype=wire)
    states = np.random.default_rng(0).standard_normal((ROWS, layout.elements), dtype=np.float32)
    out, times = np.zeros_like(states), Timings()
    banks: dict[str, StateBank] = {"in process": InProcessBank(layout)}
    for shards in SHARDS:
        name = f"{shards} shard" + "s" * (shards > 1)
        banks[name] = start_sharded_bank(layout, shards, "benchmark", f"{megabytes}-{shards}")
    for step in range(_WARM_UP + repeats):
        if step == _WARM_UP:
            times.clear()
        timed(times, "np.copyto", lambda: np.copyto(out, states))
        timed(times, "np.copyto, by pieces of 4 MiB", lambda: copy_by_pieces(out, states))
        for name, bank in banks.items():
            measure_bank(times, bank, name, step, states, out)
    for bank in banks.values():
        bank.close()
    return times


def report(sizes_mb: Iterable[int], wire: str, repeats: int) -> None:
    print(header(f"State bank throughput, {wire} on the wire, best of {repeats}"))
    print("| MB of fp32 state | what | best ms | GB/s | rate of np.copyto | median, worst over best |")
    print("| ---: | --- | ---: | ---: | ---: | ---: |")
    for megabytes in sizes_mb:
        times = measure(megabytes, wire, repeats)
        copy = min(times["np.copyto"])
        for name, seconds in times.items():
            best, spread = min(seconds), f"{statistics.median(seconds) / min(seconds):.2f}, "
            spread += f"{max(seconds) / best:.2f}"
            rate = megabytes / 1000 / best
            print(
                f"| {megabytes} | {name} | {best * 1e3:.2f} | {rate:.2f} | {copy / best:.2f} | {spread} |", flush=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="rounds that are timed, per size (default 5)")
    parser.add_argument("--wire", choices=("fp32", "bf16"), default="fp32", help="precision on the wire (default fp32)")
    parser.add_argument("--mb", type=int, nargs="+", default=SIZES_MB, help="sizes, in MB (default 4 64 256)")
    options = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        ray.init(
            address="local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, _temp_dir=folder
        )
        try:
            report(options.mb, options.wire, options.repeats)
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main()
