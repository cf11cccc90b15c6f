"""What a sweep's folder holds, finished or not, read without the code or the settings that made it.

`sweep.json` names the trials, `trials/*/result.json` and the files beside it hold what they measured.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storage.errors import StorageError
from sweeps.folder_files import NOT_FINISHED, PLAN, REPORT, read_curves, read_diagnostics, read_failure
from sweeps.report.results import ArmResult, FailedTrial
from workers.trial_files import RESULT

PLAN_OF_REPORT = "plan.json"
"""In it, the plan that the last report was made of: a search adds the best of its trials to its own."""
_NEEDED = {"sweep", "question", "preset", "trials"}
_NEEDED_OF_TRIAL = {"name", "identity", "seed", "config"}


class ReportError(ValueError):
    """A folder that no report can be made of; the message is one sentence."""


@dataclass(frozen=True)
class Sweep:
    """A sweep as its folder tells it."""

    root: Path
    plan: Mapping[str, Any]
    """Of `sweep.json`: sweep, question, about, preset, command, trials."""
    results: list[ArmResult] = field(default_factory=list)
    failed: list[FailedTrial] = field(default_factory=list)
    raw: list[Mapping[str, Any]] = field(default_factory=list)
    """`result.json` of each of `results`."""

    @property
    def name(self) -> str:
        """Of the sweep."""
        return str(self.plan["sweep"])

    @property
    def about(self) -> Mapping[str, Any]:
        """Why, figure, paper_found, contradicts, varies, facets, seeds_of."""
        about: Mapping[str, Any] = self.plan.get("about", {})
        return about

    @property
    def seeds_of(self) -> str:
        """What differs between seeds."""
        return str(self.about.get("seeds_of", "trial.seed"))


def read_plan(root: Path) -> dict[str, Any]:
    """The plan of the sweep in this folder. Raises ReportError where there is none."""
    try:
        plan = json.loads((root / PLAN).read_text())
        named = plan.keys() >= _NEEDED and all(trial.keys() >= _NEEDED_OF_TRIAL for trial in plan["trials"])
    except (OSError, ValueError, TypeError, AttributeError):
        named = False
    if not named:
        raise ReportError(
            f"{root} is no folder of a sweep: it has no {PLAN} that this version can read; name one below runs/"
        )
    return _reported(root, plan)


def _reported(root: Path, plan: dict[str, Any]) -> dict[str, Any]:
    """The plan of the last report, if there is one of this sweep; else the sweep's own."""
    try:
        last: dict[str, Any] = json.loads((root / REPORT / PLAN_OF_REPORT).read_text())
    except (OSError, ValueError):
        return plan
    return last if isinstance(last, dict) and last.get("identity") == plan.get("identity") else plan


def read_sweep(root: Path, plan: Mapping[str, Any] | None = None, reasons: Mapping[str, str] | None = None) -> Sweep:
    """The sweep in this folder.

    Args:
        root: the sweep's folder.
        plan: its plan, where it is at hand; otherwise that of the folder.
        reasons: by identity, why trials failed; of others the folder knows.

    Raises ReportError for a folder that is none. Files that are damaged make their trial one that did not finish.
    """
    sweep = Sweep(root, plan if plan is not None else read_plan(root))
    for trial in sweep.plan["trials"]:
        folder = _folder_of(root, trial["identity"])
        try:
            raw = _read_result(folder, trial["identity"])
            result = _arm_result(trial, raw, folder) if raw is not None and folder is not None else None
            why = (reasons or {}).get(trial["identity"]) or _reason(folder)
        except (StorageError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            result, why = None, f"its files are damaged ({error}); the same command runs it again"
        if result is not None and raw is not None:
            sweep.results.append(result)
            sweep.raw.append(raw)
        else:
            sweep.failed.append(FailedTrial(trial["name"]["label"], trial["seed"], why, trial["name"]["group"]))
    return sweep


def _folder_of(root: Path, identity: str) -> Path | None:
    """The folder of a trial: its name ends with the start of the identity."""
    return next(iter(sorted(root.glob(f"trials/*-{identity[:8]}"))), None)


def _read_result(folder: Path | None, identity: str) -> dict[str, Any] | None:
    if folder is None or not (folder / RESULT).is_file():
        return None
    result: dict[str, Any] = json.loads((folder / RESULT).read_text())
    return result if result["identity"] == identity else None


def _arm_result(trial: Mapping[str, Any], raw: Mapping[str, Any], folder: Path) -> ArmResult:
    curves = read_curves(folder, raw)
    name = trial["name"]
    return ArmResult(
        label=name["label"],
        arm=name["arm"],
        seed=trial["seed"],
        value=name["value"],
        select=curves["select"],
        report=curves["report"],
        apart=curves.get("apart"),
        seconds=sum(raw["seconds"].values()),
        group=name["group"],
        measurements=read_diagnostics(folder, raw),
        config=trial["config"],
    )


def _reason(folder: Path | None) -> str:
    """First line of why the last attempt failed."""
    told = read_failure(folder) if folder is not None else None
    return NOT_FINISHED if told is None else told
