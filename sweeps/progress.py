"""Live progress of a sweep: a table with one line per running trial and an ETA, or plain lines without a terminal."""

import os
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

PLAIN_SECONDS = 15.0
"""Without a terminal a running trial prints a line at most this often."""


def use_live_display(stream: TextIO) -> bool:
    """Whether a redrawn table suits `stream`: a terminal, and neither CI nor NO_COLOR asks for plain lines."""
    return stream.isatty() and not os.environ.get("CI") and not os.environ.get("NO_COLOR")


def duration(seconds: float) -> str:
    """`45 s`, `3 min 05 s` or `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


@dataclass
class RunningTrial:
    """Where a running trial stands."""

    phase: str = "starting"
    at: int = 0
    of: int = 0
    loss: float | None = None
    tokens_per_second: float | None = None
    started: float = field(default_factory=time.monotonic)
    printed: float = 0.0
    first_step: tuple[float, int] | None = None
    """When the first training report came, and the step it came at: what lies before is start-up."""

    def update(self, metrics: dict[str, Any]) -> None:
        """Take over one report of the trial."""
        self.phase, self.at, self.of = metrics["phase"], metrics["at"], metrics["of"]
        if self.phase == "training" and self.first_step is None:
            self.first_step = (time.monotonic(), self.at)
        if metrics["history"]:
            self.loss = metrics["history"][-1]["loss"]
            self.tokens_per_second = metrics["history"][-1]["tokens_per_second"]

    def remaining(self, expected: float) -> float:
        """Seconds to its end: by the steps it still has to make, or by what such a trial is expected to take."""
        left = max(0.0, expected - (time.monotonic() - self.started))
        if self.phase == "training" and self.first_step is not None and self.at > self.first_step[1]:
            since, begin = self.first_step
            left = max(left, (time.monotonic() - since) * (self.of - self.at) / (self.at - begin))
        return left

    def cells(self) -> list[str]:
        """Phase, progress, loss, speed and elapsed time as text."""
        return [
            self.phase,
            f"{self.at}/{self.of}" if self.of else "",
            f"loss {self.loss:.3f}" if self.loss is not None else "",
            f"{self.tokens_per_second:,.0f} tok/s" if self.tokens_per_second else "",
            duration(time.monotonic() - self.started),
        ]


class Progress:
    """Counts trials and shows the running ones on stderr. Use as a context manager."""

    def __init__(self, planned: int, finished_before: int, concurrency: int, expected_seconds: float) -> None:
        """`expected_seconds`: guess for one trial, used until the first one has finished."""
        self.planned = planned
        self.finished = finished_before
        self.failed = 0
        self.concurrency = concurrency
        self.expected_seconds = expected_seconds
        self.running: dict[str, RunningTrial] = {}
        self.durations: list[float] = []
        self.console = Console(stderr=True)
        self.live = (
            Live(get_renderable=self._table, console=self.console, refresh_per_second=2, transient=True)
            if use_live_display(sys.stderr)
            else None
        )

    def __enter__(self) -> "Progress":
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.live:
            self.live.stop()

    def say(self, line: str) -> None:
        """Print one line above the live table."""
        self.console.print(Text(line), soft_wrap=True)

    def start(self, label: str) -> None:
        """A trial has begun (or begins again)."""
        self.running[label] = RunningTrial()
        self.say(f"{label}: started")

    def report(self, label: str, metrics: dict[str, Any]) -> None:
        """A running trial has reported."""
        trial = self.running.setdefault(label, RunningTrial())
        changed_phase = trial.phase != metrics["phase"]
        trial.update(metrics)
        if self.live is None and (changed_phase or time.monotonic() - trial.printed > PLAIN_SECONDS):
            trial.printed = time.monotonic()
            self.say(f"{label}: {', '.join(cell for cell in trial.cells() if cell)}; {self.summary()}")

    def finish(self, label: str) -> None:
        """A trial has finished."""
        trial = self.running.pop(label, RunningTrial())
        self.durations.append(time.monotonic() - trial.started)
        self.finished += 1
        self.say(f"{label}: finished in {duration(self.durations[-1])}; {self.summary()}")

    def stop(self, label: str, reason: str) -> None:
        """A trial has been stopped early; it is done."""
        self.running.pop(label, None)
        self.finished += 1
        self.say(f"{label}: {reason}; {self.summary()}")

    def fail(self, label: str, reason: str) -> None:
        """A trial has failed for good."""
        self.running.pop(label, None)
        self.failed += 1
        self.say(f"{label}: failed: {reason}")

    def summary(self) -> str:
        """`4 of 10 done, ETA 2 min 10 s`."""
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.finished} of {self.planned} done{failed}, ETA {duration(self.eta())}"

    def eta(self) -> float:
        """Seconds to the end: median duration of a trial x what is left / concurrency, or the longest running trial."""
        each = statistics.median(self.durations) if self.durations else self.expected_seconds
        waiting = self.planned - self.finished - self.failed - len(self.running)
        running = [trial.remaining(each) for trial in self.running.values()]
        # The last trials leave places empty, so that the longest of them decides.
        return max([(waiting * each + sum(running)) / self.concurrency, *running])

    def _table(self) -> Group:
        table = Table.grid(padding=(0, 2))
        for label, trial in self.running.items():
            table.add_row(label, *trial.cells())
        return Group(table, Text(self.summary()))
