"""MLflow tracking of a sweep: one parent run, one child run per trial for ever.

- `Tracker` works with explicit run ids and no fluent global state. It is called from the sweep's driver process
  only: one writer, so SQLite suffices and no two runs are made for one trial.
- Runs are found again by tags (`sweep.id`, `sweep.role`, `trial.identity`), never by names or local files, so the
  same command continues them after any end of the first one.
- The MLflow step of `ppl_by_position` is the position (right bin edge); training metrics carry the prefix `train/`.
- Every call may be repeated: what is there already is not written twice.

MLflow itself is imported when a `Tracker` is made, not before.
"""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from storage import tracking_values as values
from storage.curve_files import write_curve
from storage.measurements import write_measurements
from storage.tracking_client import RunStore, TrackedRun, tracked
from storage.tracking_store_check import TrackingError, check_store
from storage.tracking_view import VIEW_TAG, view_path, view_state

if TYPE_CHECKING:
    from storage.curves import Curve
    from storage.measurements import Measurements

__all__ = ["CURVE_KEY", "EndStatus", "TrackedRun", "Tracker", "TrackingError", "check_store"]

EndStatus = Literal["FINISHED", "FAILED", "KILLED"]
CURVE_KEY = "ppl_by_position"
NOTE = (
    "The step of `ppl_by_position` is the position in the evaluation window (right bin edge); "
    "the step of `train/` metrics is the optimiser step."
)


class Tracker:
    """The tracking store at `uri`, opened for one sweep's driver.

    Every method raises `TrackingError` when the store stays locked for `patience_s` seconds or fails otherwise.
    Raises `StorageError` when the store cannot be used at all (see `check_store`).
    """

    def __init__(self, uri: str, patience_s: float = 30.0) -> None:
        self._store = RunStore(uri, patience_s)

    def open_sweep(self, name: str, sweep_id: str, tags: Mapping[str, str] | None = None) -> TrackedRun:
        """The parent run of the sweep `sweep_id` in the experiment `name`: continued (RUNNING again) or made."""

        def open_once() -> TrackedRun:
            experiment = self._store.experiment(name)
            self._store.client.set_experiment_tag(experiment, VIEW_TAG, view_state(CURVE_KEY, sweep_id))
            marks = {"sweep.id": sweep_id, "sweep.role": "sweep"}
            notes = {"sweep.name": name, "mlflow.note.content": NOTE, **(tags or {})}
            return self._store.continue_or_create(experiment, f"{name}-{sweep_id[:8]}", marks, notes)

        return self._store.write(open_once)

    def open_trial(
        self,
        parent: TrackedRun,
        trial_id: str,
        identity: str,
        arm: str,
        params: Mapping[str, Any],
        color: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> TrackedRun:
        """The child run of the trial with this `identity`: continued (RUNNING again) or made, never a second one.

        `trial_id` is shown as its name, `params` are flattened to dotted names. MLflow parameters cannot change; a
        setting outside the identity that did change between two starts is kept as the tag `now.NAME`. `color`
        (`#rrggbb`) is the run's colour in the UI, so that an arm looks there as it does in the figures. `tags` are set
        when the run is made.
        """

        def open_once() -> TrackedRun:
            sweep_id = str(self._store.client.get_run(parent.run_id).data.tags["sweep.id"])
            marks = {"mlflow.parentRunId": parent.run_id, "trial.identity": identity}
            notes = {"sweep.role": "trial", "sweep.id": sweep_id, "trial.id": trial_id}
            notes |= {**({"mlflow.runColor": color} if color else {}), **(tags or {})}
            run = self._store.continue_or_create(parent.experiment_id, trial_id, marks, notes)
            self._store.log_params(run, {"arm": arm, **values.flatten(params)})
            return run

        return self._store.write(open_once)

    def log_training(self, run: TrackedRun, history: Sequence[Mapping[str, float | None]]) -> int:
        """Log the trial's whole history so far; return how many of its values are not finite (left out, tagged).

        Each entry has the key `step` beside its metrics. Only steps beyond the last one logged are written, so the
        call may be repeated with a longer history, and after a resume.
        """
        points, left_out = values.training_points(history)
        tags = {"train.nonfinite": str(left_out), "status.nonfinite": "true"} if left_out else {}
        self._store.write(lambda: self._store.log_points(run, self._beyond_last(run, points), tags))
        return left_out

    def _beyond_last(self, run: TrackedRun, points: Sequence[values.Point]) -> list[values.Point]:
        # Asked from the store key by key, so that a batch cut short by a crash is completed without repetition.
        there = self._store.client.get_run(run.run_id).data.metrics.keys() & {point.key for point in points}
        last = {key: max(self._store.history(run, key)) for key in there}
        return [point for point in points if point.step > last.get(point.key, -1)]

    def log_curve(self, run: TrackedRun, curve: "Curve", key: str = CURVE_KEY) -> None:
        """Log perplexity by position (step = right bin edge), its summary values and the whole curve as Parquet.

        Bins that are not finite are left out and counted in the tag `KEY.nonfinite`. Logging the same curve again
        changes nothing; another curve under the same key is a `TrackingError`. The summary values (`ppl_train`,
        `ppl_1k`, `ppl_8k`, `ratio`, `bits_per_byte`) take the prefix of the key, as in `select/ppl_by_position`.
        """
        points, left_out = values.curve_points(curve, key)
        tags = {f"{key}.nonfinite": str(left_out), "status.nonfinite": "true"} if left_out else {}
        points += values.summary_points(curve, key)
        self._store.write(lambda: self._store.log_points(run, self._missing(run, points), tags))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{key.replace('/', '_')}.parquet"
            write_curve(path, curve)
            self._store.upload(run, path, "curves")

    def log_measurements(self, run: TrackedRun, measurements: "Measurements") -> None:
        """Log a diagnostic: its columns by position where it is a curve, its summary, and all of it as Parquet.

        Metrics are `NAME/COLUMN` with the position as step, and `NAME/KEY` of the summary. Values that are not finite
        are left out and counted in the tag `NAME.nonfinite`. Repeating the call changes nothing; other values under the
        same name are a `TrackingError`.
        """
        points, left_out = values.measurement_points(measurements)
        tags = {f"{measurements.name}.nonfinite": str(left_out), "status.nonfinite": "true"} if left_out else {}
        self._store.write(lambda: self._store.log_points(run, self._missing(run, points), tags))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{measurements.name}.parquet"
            write_measurements(path, measurements)
            self._store.upload(run, path, "diagnostics")

    def _missing(self, run: TrackedRun, points: Sequence[values.Point]) -> list[values.Point]:
        there = {key: self._store.history(run, key) for key in {point.key for point in points}}
        others = (point.key for point in points if there[point.key].get(point.step, point.value) != point.value)
        if other := next(others, None):
            raise TrackingError(
                f"the MLflow run {run.name!r} already holds other values of {other}; start anew with --fresh"
            )
        return [point for point in points if point.step not in there[point.key]]

    def finish(self, run: TrackedRun, status: EndStatus, reason: str | None = None) -> None:
        """End the run; `reason` (why it failed or was stopped) becomes the tag `status.reason`."""

        def finish_once() -> None:
            if reason:
                self._store.client.set_tag(run.run_id, "status.reason", values.shorten(reason, values.TAG_LIMIT))
            self._store.client.set_terminated(run.run_id, status)

        self._store.write(finish_once)

    def log_report(self, parent: TrackedRun, files: Iterable[Path]) -> None:
        """Keep figures and tables as artifacts of the parent run, in the folder `report`."""
        for path in files:
            self._store.upload(parent, path, "report")

    def close_open_runs(self, sweep_id: str, status: EndStatus, reason: str | None = None) -> int:
        """End every run of the sweep that is still RUNNING, the parent last; return how many there were."""
        still_open = [run for run in self.runs_of(sweep_id) if run.status == "RUNNING"]
        for run in sorted(still_open, key=lambda run: run.identity is None):
            self.finish(run, status, reason)
        return len(still_open)

    def runs_of(self, sweep_id: str) -> list[TrackedRun]:
        """All runs of the sweep, parent first, then trials in the order of their start."""
        runs = self._store.write(lambda: self._store.search_everywhere({"sweep.id": sweep_id}))
        return sorted(map(tracked, runs), key=lambda run: run.identity is not None)

    def view_path(self, run: TrackedRun) -> str:
        """Where an MLflow UI shows the overlaid curves of the run's experiment (path below the UI's address)."""
        return view_path(run.experiment_id)
