"""What an early stop leaves in the trial's folder: the folder is the truth, whatever the study had time to hear."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from storage.files import write_json

STOPPED = "stopped.json"
"""Written by the driver before the study is told."""


@dataclass(frozen=True, kw_only=True)
class Stop:
    """A trial that was stopped on its way."""

    identity: str
    step: int
    """Steps it made."""
    steps: int
    """Steps it would have made."""
    values: dict[int, float]
    """The objective by step, at the evaluations up to the stop."""
    history: list[dict[str, Any]]
    """One entry per step."""

    @property
    def reason(self) -> str:
        """For the tracking store."""
        return f"stopped early after step {self.step} of {self.steps}: others were better at this step"


def write_stop(folder: Path, stop: Stop) -> None:
    """Keep it in the trial's folder."""
    write_json(folder / STOPPED, asdict(stop))


def read_stop(folder: Path, identity: str) -> Stop | None:
    """The stop of the trial of this identity; None where it was not stopped."""
    try:
        kept = json.loads((folder / STOPPED).read_text())
        stop = Stop(**{**kept, "values": {int(step): float(value) for step, value in kept["values"].items()}})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return stop if stop.identity == identity else None
