"""What the driver writes into the tracking store while a sweep runs; a store that fails never costs a result.

All calls come from the driver's process. After a `TrackingError` the sweep goes on, the trouble is said once, and
the same command later writes what is missing, because everything is on disk and every call may be repeated.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from storage.tracking import EndStatus, TrackedRun, Tracker, TrackingError
from sweeps.folder import SweepFolder
from sweeps.interrupts import held_back
from sweeps.planned import PlannedTrial
from sweeps.report.figure_lines import styles

CURVE_KEYS = {"report": "ppl_by_position", "select": "select/ppl_by_position", "apart": "apart/ppl_by_position"}
"""Tracking key of each split's curve: the report split is what the UI overlays."""


class Recorder:
    """The parent run of a sweep and one child run per trial."""

    def __init__(self, tracker: Tracker, folder: SweepFolder, say: Callable[[str], None]) -> None:
        self.tracker = tracker
        self.folder = folder
        self.say = say
        self.trouble: str | None = None
        self.styles = styles(one.arm for one in folder.plan.trials)
        self.runs: dict[str, TrackedRun] = {}
        self.histories: dict[str, dict[float | None, dict[str, float | None]]] = {}
        """By identity, what a trial reported, by step."""
        self.failures: dict[str, str] = {}
        self.stops: dict[str, tuple[str, Sequence[dict[str, float | None]]]] = {}
        """By identity, why a trial was stopped early, and the steps it had made."""
        self.tags: dict[str, dict[str, str]] = {}
        """By identity, further tags of a trial's run."""

    def open(self) -> None:
        """Open the parent run, or continue it, and write what an earlier command could not. Raises TrackingError."""
        plan = self.folder.plan
        tags = {
            "sweep.question": plan.sweep.question,
            "sweep.folder": str(self.folder.root),
            "sweep.preset": plan.preset,
        }
        with held_back():
            self.parent = self.tracker.open_sweep(plan.sweep.name, self.folder.sweep_id, tags)
        self.catch_up(plan.trials)

    def started(self, trial: PlannedTrial) -> None:
        """Open (or continue) the trial's run."""
        self.histories[trial.identity] = {}
        self._try(lambda: self._run(trial))

    def progressed(self, trial: PlannedTrial, history: Sequence[dict[str, float | None]]) -> None:
        """Keep what a trial reported; it is written when the trial ends."""
        self.histories.setdefault(trial.identity, {}).update((entry["step"], entry) for entry in history)

    def finished(self, trial: PlannedTrial, result: dict[str, Any]) -> None:
        """Write history, curves, diagnostics and status of a finished trial."""
        self._try(lambda: self._write_finished(trial, result))

    def failed(self, trial: PlannedTrial, reason: str) -> None:
        """Mark the trial's run as failed, with the steps it made."""
        self.failures[trial.identity] = reason
        self._try(lambda: self._write_failed(trial))

    def stopped(self, trial: PlannedTrial, reason: str, history: Sequence[dict[str, float | None]]) -> None:
        """Mark the run of a trial that a search stopped early as killed, with the steps it made."""
        self.stops[trial.identity] = (reason, history)
        self._try(lambda: self._write_stopped(trial))

    def run_id(self, trial: PlannedTrial) -> str | None:
        """Id of the trial's run; None while there is none, as when tracking is behind."""
        if trial.identity in self.runs:
            return self.runs[trial.identity].run_id
        found: dict[str | None, str] = {}

        def look() -> None:
            found.update((run.identity, run.run_id) for run in self.tracker.runs_of(self.folder.sweep_id))

        self._try(look)
        return found.get(trial.identity)

    def close(self, status: EndStatus, reason: str | None = None) -> None:
        """End every run of the sweep that is still open, the parent last."""
        self._try(lambda: self.tracker.close_open_runs(self.folder.sweep_id, status, reason))

    def view_path(self) -> str:
        """Where the MLflow UI overlays the curves, below its address."""
        return self.tracker.view_path(self.parent)

    def log_report(self, files: list[Path]) -> None:
        """Keep the report's files as artifacts of the parent run."""
        self._try(lambda: self.tracker.log_report(self.parent, files))

    def catch_up(self, trials: Sequence[PlannedTrial]) -> None:
        """Write ended trials whose run does not say so, as after a kill or a locked store."""

        def write() -> None:
            status = {run.identity: run.status for run in self.tracker.runs_of(self.folder.sweep_id)}
            for trial in trials:
                result = self.folder.result(trial)
                if result is not None and status.get(trial.identity) != "FINISHED":
                    self._write_finished(trial, result)
                elif trial.identity in self.stops and status.get(trial.identity) != "KILLED":
                    self._write_stopped(trial)
                elif trial.identity in self.failures and status.get(trial.identity) != "FAILED":
                    self._write_failed(trial)

        self._try(write)

    def _write_finished(self, trial: PlannedTrial, result: dict[str, Any]) -> None:
        run = self._run(trial)
        self.tracker.log_training(run, self.folder.history(trial))
        for split, curve in self.folder.curves(trial, result).items():
            self.tracker.log_curve(run, curve, CURVE_KEYS[split])
        for measurements in self.folder.measurements(trial, result).values():
            self.tracker.log_measurements(run, measurements)
        self.tracker.finish(run, "FINISHED")

    def _write_failed(self, trial: PlannedTrial) -> None:
        run = self._run(trial)
        self.tracker.log_training(run, list(self.histories.get(trial.identity, {}).values()))
        self.tracker.finish(run, "FAILED", self.failures[trial.identity])

    def _write_stopped(self, trial: PlannedTrial) -> None:
        reason, history = self.stops[trial.identity]
        run = self._run(trial)
        self.tracker.log_training(run, history)
        self.tracker.finish(run, "KILLED", reason)

    def _run(self, trial: PlannedTrial) -> TrackedRun:
        if trial.identity not in self.runs:
            self.runs[trial.identity] = self.tracker.open_trial(
                self.parent,
                trial.label,
                trial.identity,
                trial.arm.arm,
                _parameters(trial),
                color=self._color(trial),
                tags=self.tags.get(trial.identity),
            )
        return self.runs[trial.identity]

    def _color(self, trial: PlannedTrial) -> str:
        key = (trial.arm.group, trial.arm.label)
        # What a search suggests is in no plan; it has the colour of its arm.
        return (self.styles.get(key) or styles([trial.arm])[key]).color

    def _try(self, write: Callable[[], object]) -> None:
        try:
            with held_back():
                write()
        except TrackingError as error:
            if self.trouble is None:
                self.say(
                    f"tracking is behind: {error}; what is missing is written at the end, or by the same command later"
                )
            self.trouble = str(error)
        else:
            self.trouble = None


def _parameters(trial: PlannedTrial) -> dict[str, Any]:
    """The trial's settings, those of the state bank as they were resolved."""
    values = trial.config.to_dict()
    if trial.bank is not None:
        values["bank"] |= {"mode": trial.bank.mode, "shards": trial.bank.shards}
    return values
