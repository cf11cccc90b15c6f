"""The whole catalogue, one sweep after the other: `python -m sweeps.run --all`. The same command continues.

Every sweep is a command of its own in a process of its own, so that none can disturb the next, and what one of them
has finished is not run again. `runs/catalogue.json` keeps how long each took, over all the commands it needed.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.table import Table

from storage.files import write_json
from sweeps.progress import duration

RECORD = Path("runs") / "catalogue.json"
REFUSED, SOME_FAILED, INTERRUPTED = 2, 3, 130
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MEANING = {0: "done", 1: "failed", REFUSED: "refused", SOME_FAILED: "some trials failed", INTERRUPTED: "interrupted"}


@dataclass(frozen=True)
class Entry:
    """One sweep of the catalogue, or one stage of it."""

    sweep: str
    stage: str = ""

    @property
    def title(self) -> str:
        """For the table."""
        return f"{self.sweep} {self.stage}".strip()

    @property
    def settings(self) -> list[str]:
        """Its own `--set` flags."""
        return ["--set", f"sweep.stage={self.stage}"] if self.stage else []


STAGES = ("pretrain", "posttrain")
CATALOGUE = (
    *(Entry(name) for name in ("noise_scale", "interventions", "beta", "reset_probability")),
    *(Entry("warmup", stage) for stage in STAGES),
    *(Entry("context_length", stage) for stage in STAGES),
    *(Entry(name) for name in ("training_tokens", "model_size", "architectures", "steps", "learning_rate")),
    *(Entry(name) for name in ("noise_structure", "what_is_passed")),
)
"""In the order in which they run."""


def run_catalogue(flags: Sequence[str], *, shown_only: bool) -> int:
    """Run every entry with these flags; the exit code is 3 where any failed, 2 where all were refused, or 130."""
    codes: dict[str, int] = {}
    for number, entry in enumerate(CATALOGUE, start=1):
        print(f"{number} of {len(CATALOGUE)}: {entry.title}", file=sys.stderr, flush=True)
        started = time.monotonic()
        codes[entry.title] = _run(entry, flags)
        if not shown_only:
            _remember(entry.title, time.monotonic() - started, codes[entry.title])
        if codes[entry.title] == INTERRUPTED:
            break
    if not shown_only:
        # With --json stdout holds one JSON document after the other, and nothing else.
        Console(width=None if os.isatty(1) else 120, stderr="--json" in flags).print(_table(codes))
    if INTERRUPTED in codes.values():
        print("interrupted; the same command continues", file=sys.stderr)
        return INTERRUPTED
    if set(codes.values()) == {REFUSED}:
        return REFUSED
    return SOME_FAILED if any(codes.values()) else 0


def _run(entry: Entry, flags: Sequence[str]) -> int:
    """Run one entry as a command of its own; whoever stops this process stops that one, once."""
    command = [sys.executable, "-m", "sweeps.run", entry.sweep, *entry.settings, *flags]
    # A session of its own: a key press in the terminal would reach it beside the signal that is passed on here.
    process = subprocess.Popen(command, start_new_session=True)

    def pass_on(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    kept = {number: signal.signal(number, pass_on) for number in SIGNALS}
    try:
        code = process.wait()
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    ended = {-number for number in SIGNALS} | {128 + number for number in SIGNALS}
    return INTERRUPTED if code in ended else code


def _remember(title: str, seconds: float, code: int) -> None:
    record = _record()
    before = record.get(title, {}).get("seconds", 0.0)
    RECORD.parent.mkdir(exist_ok=True)
    write_json(RECORD, {**record, title: {"seconds": round(before + seconds, 1), "exit_code": code}})


def _record() -> dict[str, Any]:
    try:
        kept: dict[str, Any] = json.loads(RECORD.read_text())
    except (OSError, ValueError):
        return {}
    return kept


def _table(codes: dict[str, int]) -> Table:
    record = _record()
    table = Table(title="the catalogue", title_justify="left")
    for column in ("sweep", "result", "time, all commands"):
        table.add_column(column)
    for entry in CATALOGUE:
        code = codes.get(entry.title)
        result = "not started" if code is None else MEANING.get(code, f"exit code {code}")
        seconds = record.get(entry.title, {}).get("seconds")
        table.add_row(entry.title, result, "-" if seconds is None else duration(seconds))
    table.add_row("all", "", duration(sum(kept["seconds"] for kept in record.values())))
    return table
