"""What every benchmark prints: where and when it ran, with which versions, and a Markdown table."""

import datetime
import importlib.metadata
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

VERSIONS = ("torch", "ray", "deepspeed", "mlflow", "transformers", "numpy")


def header(title: str) -> str:
    """Title, date, machine, versions and command, as Markdown."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in VERSIONS)
    command = " ".join(["python -m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]])
    load = f"{os.getloadavg()[0]:.1f}"
    return (
        f"# {title}\n\n"
        f"{datetime.date.today().isoformat()}, {_processor()}, {len(os.sched_getaffinity(0))} cores, "
        f"load {load} at the start, Python {platform.python_version()}, {versions}\n\n"
        f"    {command}\n"
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; numbers are right-aligned."""
    lines = ["| " + " | ".join(columns) + " |", "| --- |" + " ---: |" * (len(columns) - 1)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]) + "\n"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
