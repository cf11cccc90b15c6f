"""A sweep's folder: its plan, one folder per trial, the report. What is finished in it never runs again."""

import itertools
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock, Timeout

from models.content import weights_files
from models.errors import ModelError
from storage.curves import Curve
from storage.files import folder_is_writable, write_json
from storage.measurements import Measurements
from sweeps.folder_files import PLAN, REPORT, SESSION, read_curves, read_diagnostics, read_failure
from sweeps.gpu_memory import gpu_part
from sweeps.planned import PlannedTrial, SweepPlan
from sweeps.settings import SettingError
from workers.settings import TrialConfig
from workers.trial_files import HISTORY, RESULT, kept_model


def choose_folder(plan: SweepPlan, out: Path | None, *, fresh: bool) -> Path:
    """The folder of the sweep; with `fresh` the first free name beside it. Raises SettingError, writes nothing."""
    folder = (out or plan.default_folder).absolute()
    if fresh:
        folder = _first_free(folder)
    _check_writable(folder)
    kept = _read_json(folder / PLAN)
    if kept is None and folder.is_dir() and not _is_unclaimed(folder, plan):
        raise SettingError(f"{folder} holds something that is not a sweep; choose another folder with --out")
    if kept is not None and kept.get("identity") != plan.identity:
        raise SettingError(
            f"{folder} holds the sweep {kept.get('sweep')} with other settings "
            f"({str(kept.get('identity'))[:8]}, not {plan.identity[:8]}); choose another --out, or add --fresh"
        )
    return folder


def _is_unclaimed(folder: Path, plan: SweepPlan) -> bool:
    """Whether a folder without a readable plan is empty, or one of ours that holds nothing but trials of this sweep."""
    names = {path.name for path in folder.iterdir()}
    if not names:
        return True
    ours = {trial.identity for trial in plan.trials}
    results = [_read_json(path) or {} for path in folder.glob(f"trials/*/{RESULT}")]
    is_known = names <= {".lock", PLAN, "trials", "token_cache", REPORT, "tune", SESSION}
    return ".lock" in names and is_known and all(result.get("identity") in ours for result in results)


def _first_free(folder: Path) -> Path:
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))
    return next(path for path in itertools.chain([folder], numbered) if not path.exists())


def _check_writable(folder: Path) -> None:
    nearest = folder
    while not nearest.exists():
        nearest = nearest.parent
    if not nearest.is_dir() or not folder_is_writable(nearest):
        raise SettingError(f"the output folder {folder} cannot be written; choose another with --out")


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None


@dataclass
class SweepFolder:
    """An open folder of a sweep, locked against a second driver. Use as a context manager."""

    root: Path
    plan: SweepPlan
    _whole: dict[str, tuple[tuple[str, int, int], ...]] = field(default_factory=dict, init=False, repr=False)
    """By identity, the files of the finished trials that were found whole: name, time and size of each."""

    def __enter__(self) -> Self:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingError(
                f"the output folder {self.root} cannot be made ({error.strerror}); choose another with --out"
            ) from error
        self._lock = FileLock(self.root / ".lock", timeout=0)
        try:
            self._lock.acquire()
        except Timeout:
            raise SettingError(f"another process is running the sweep in {self.root}; wait for it or end it") from None
        return self

    def claim(self) -> None:
        """Write the plan: from now on the folder belongs to this sweep. Called once nothing speaks against it."""
        if "folder_id" not in (_read_json(self.root / PLAN) or {}):
            write_json(self.root / PLAN, {**plan_as_json(self.plan), "folder_id": secrets.token_hex(4)})

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    @property
    def sweep_id(self) -> str:
        """The sweep's name in the tracking store: its identity and this folder's own number.

        A second folder of the same sweep (`--fresh`, another `--out`) is another parent run with children of its own.
        """
        kept = _read_json(self.root / PLAN) or {}
        return f"{self.plan.identity}-{kept['folder_id']}"

    @property
    def cache(self) -> Path:
        """Token caches, shared by the trials."""
        return self.root / "token_cache"

    @property
    def report(self) -> Path:
        """Figures and tables."""
        return self.root / REPORT

    def trial(self, trial: PlannedTrial) -> Path:
        """Folder of one trial."""
        return self.root / "trials" / trial.name

    def config(self, trial: PlannedTrial) -> TrialConfig:
        """The trial's configuration as it runs: where it starts from another trial's model, with the folder of that."""
        if trial.base is None:
            return trial.config
        base = next(one for one in self.plan.trials if one.identity == trial.base)
        checkpoint = str(self.trial(base) / kept_model(trial.config.base.step))
        return replace(trial.config, base=replace(trial.config.base, checkpoint=checkpoint))

    def result(self, trial: PlannedTrial) -> dict[str, Any] | None:
        """What a finished trial left behind; None when it has not finished."""
        result = _read_json(self.trial(trial) / RESULT)
        if result is None or result.get("identity") != trial.identity:
            return None
        try:
            stamp = self._stamp(trial, result)
            if self._whole.get(trial.identity) != stamp:
                self.curves(trial, result)
                self.measurements(trial, result)
                self.history(trial)
                self._whole[trial.identity] = stamp
        except (OSError, ValueError, KeyError, AttributeError):
            # Damaged since: the trial runs again.
            return None
        return result if self._holds_models(trial) else None

    def _holds_models(self, trial: PlannedTrial) -> bool:
        """Whether the models are there that trials without a result are yet to start from; else it trains again."""
        waiting = [one for one in self.plan.possible if one.base == trial.identity and not self._has_result(one)]
        try:
            for step in {one.config.base.step for one in waiting}:
                weights_files(self.trial(trial) / kept_model(step))
        except ModelError:
            return False
        return True

    def _has_result(self, trial: PlannedTrial) -> bool:
        return (_read_json(self.trial(trial) / RESULT) or {}).get("identity") == trial.identity

    def _stamp(self, trial: PlannedTrial, result: dict[str, Any]) -> tuple[tuple[str, int, int], ...]:
        """Name, time and size of each file of a finished trial: while they stay, what was read of them stays true."""
        measured = (*result["curves"].values(), *result.get("diagnostics", {}).values())
        files = [(name, (self.trial(trial) / name).stat()) for name in (RESULT, HISTORY, *measured)]
        return tuple((name, found.st_mtime_ns, found.st_size) for name, found in files)

    def check_documents(self, report_documents: Sequence[str]) -> None:
        """Raise SettingError when finished trials were measured on the same text under other names of documents."""
        for trial in self.plan.trials:
            result = self.result(trial)
            if result is None:
                continue
            kept = self.curves(trial, result)["report"].document_ids
            other = next(((old, new) for old, new in zip(kept, report_documents, strict=True) if old != new), None)
            if other:
                raise SettingError(
                    f"the finished trials in {self.root} were measured on {other[0]!r}, which is now called "
                    f"{other[1]!r}: give the files of data.files their old names back, or start anew with --fresh"
                )

    def curves(self, trial: PlannedTrial, result: dict[str, Any]) -> dict[str, Curve]:
        """The curves of a finished trial by split. Raises StorageError when one is damaged."""
        return read_curves(self.trial(trial), result)

    def measurements(self, trial: PlannedTrial, result: dict[str, Any]) -> dict[str, Measurements]:
        """The diagnostics of a finished trial by name. Raises StorageError when one is damaged."""
        return read_diagnostics(self.trial(trial), result)

    def history(self, trial: PlannedTrial) -> list[dict[str, float | None]]:
        """One entry per step of a finished trial; None stands for a value that was not finite."""
        entries: list[dict[str, float | None]] = json.loads((self.trial(trial) / HISTORY).read_text())
        return entries

    def failure(self, trial: PlannedTrial) -> str | None:
        """First line of why the last attempt of a trial failed."""
        return read_failure(self.trial(trial))


def plan_as_json(plan: SweepPlan) -> dict[str, Any]:
    """What `--dry-run --json` prints and the folder keeps: exactly what runs."""
    return {
        "sweep": plan.sweep.name,
        "question": plan.sweep.question,
        "about": {
            "why": plan.sweep.why,
            "figure": plan.sweep.figure,
            "paper_found": plan.sweep.paper_found,
            "contradicts": plan.sweep.contradicts,
            "varies": plan.sweep.varies,
            "facets": list(plan.sweep.facets),
            "seeds_of": plan.sweep.seeds_of,
        },
        "preset": plan.preset,
        "command": plan.command,
        "identity": plan.identity,
        "fetches": list(plan.fetches),
        "trials": [trial.as_json() | gpu_part(plan, trial) for trial in plan.trials],
    }
