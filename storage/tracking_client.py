"""The layer between `Tracker` and MLflow: finding and making runs by tags, repeatable writes, plain errors.

MLflow is imported when a `RunStore` is made, not before. Every write is given as an action that may be repeated: it
looks at what is there first. So a store that is locked for a while costs waiting, never a doubled run or value.
"""

import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from filelock import FileLock

from storage.tracking_store_check import TrackingError, check_store, sqlite_path, wait_until_writable
from storage.tracking_values import Point, shorten

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # A server that has gone away is told within a minute, not after MLflow's default of seven growing pauses.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
_T = TypeVar("_T")


@dataclass(frozen=True)
class TrackedRun:
    """One MLflow run of a sweep."""

    run_id: str
    experiment_id: str
    name: str
    status: str
    """RUNNING, FINISHED, FAILED or KILLED, as it was when this object was made."""
    identity: str | None = None
    """Identity of the trial, `None` for the parent run."""


class RunStore:
    """Runs of the store at `uri`. `patience_s`: how long a locked store is waited for, in seconds.

    Raises `StorageError` when the store cannot be used at all (see `check_store`), `TrackingError` later on.
    """

    def __init__(self, uri: str, patience_s: float) -> None:
        check_store(uri)
        self.uri = uri
        self.patience_s = patience_s
        os.environ.update({name: value for name, value in _QUIET.items() if name not in os.environ})
        with self.plain_errors():
            path = sqlite_path(uri)
            if path is not None and not path.exists():
                _make_database(path)
            self.client = _new_client(uri)
            self.client.search_experiments(max_results=1)

    def write(self, action: Callable[[], _T]) -> _T:
        """Run a repeatable action; while the store is locked or away, again with growing pauses for `patience_s`."""
        deadline = time.monotonic() + self.patience_s
        pause = 0.2
        while True:
            wait_until_writable(self.uri, max(deadline - time.monotonic(), 0.1))
            try:
                with self.plain_errors():
                    return action()
            except TrackingError as error:
                if not _may_pass(error.__cause__) or time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause *= 2

    @contextmanager
    def plain_errors(self) -> Iterator[None]:
        """Turn whatever MLflow raises into one sentence of ours."""
        from alembic.util.exc import CommandError
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (MlflowException, SQLAlchemyError, CommandError, ImportError, OSError) as error:
            raise TrackingError(f"the tracking store {self.uri} failed: {_first_line(error)}") from error

    def experiment(self, name: str) -> str:
        """The id of the experiment, made if need be; one that was deleted in the UI is an error."""
        found = self.client.get_experiment_by_name(name)
        if found is None:
            return str(self.client.create_experiment(name, artifact_location=self._artifact_location(name)))
        if found.lifecycle_stage != "active":
            raise TrackingError(
                f"the MLflow experiment {name!r} was deleted; bring it back with "
                f"`mlflow experiments restore --experiment-id {found.experiment_id}`"
            )
        return str(found.experiment_id)

    def _artifact_location(self, name: str) -> str | None:
        # Beside the database and absolute, so that a plain `mlflow ui` can show and hand out the files.
        # A server decides for itself where its artifacts lie.
        path = sqlite_path(self.uri)
        return None if path is None else (path.resolve().parent / "mlartifacts" / name).as_uri()

    def continue_or_create(
        self, experiment: str, name: str, marks: Mapping[str, str], notes: Mapping[str, str]
    ) -> TrackedRun:
        """The run with all the tags `marks`, RUNNING again; else a new one with the tags `marks` and `notes`."""
        found = next(iter(self.search([experiment], marks)), None)
        if found is None:
            return tracked(self.client.create_run(experiment, tags={**marks, **notes}, run_name=name))
        if found.info.status != "RUNNING":
            self.client.update_run(found.info.run_id, status="RUNNING")
        if "status.reason" in found.data.tags:
            self.client.delete_tag(found.info.run_id, "status.reason")
        return tracked(self.client.get_run(found.info.run_id))

    def search(self, experiments: Sequence[str], tags: Mapping[str, str]) -> list["Run"]:
        """All runs with these tags, oldest first: should two ever match, each start picks the same one."""
        if not experiments:
            return []
        query = " AND ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
        order = ["attributes.start_time ASC"]
        return list(_pages(self.client.search_runs, list(experiments), filter_string=query, order_by=order))

    def search_everywhere(self, tags: Mapping[str, str]) -> list["Run"]:
        """All runs with these tags in any experiment, oldest first."""
        return self.search([found.experiment_id for found in _pages(self.client.search_experiments)], tags)

    def history(self, run: TrackedRun, key: str) -> dict[int, float]:
        """Step -> value of one metric, everything that was logged."""
        return {metric.step: metric.value for metric in self.client.get_metric_history(run.run_id, key)}

    def log_points(self, run: TrackedRun, points: Sequence[Point], tags: Mapping[str, str]) -> None:
        """Log all points and tags as one batch (MLflow itself cuts it into pieces of 1000)."""
        from mlflow.entities import Metric, RunTag

        now = int(time.time() * 1000)
        metrics = [Metric(point.key, point.value, now, point.step) for point in points]
        self.client.log_batch(run.run_id, metrics=metrics, tags=[RunTag(*tag) for tag in tags.items()])

    def log_params(self, run: TrackedRun, params: Mapping[str, str]) -> None:
        """Log the parameters that are not there yet; one that has changed since becomes the tag `now.NAME`."""
        from mlflow.entities import Param, RunTag

        there = self.client.get_run(run.run_id).data.params
        new = [Param(key, value) for key, value in params.items() if key not in there]
        changed = [RunTag(f"now.{key}", value) for key, value in params.items() if there.get(key, value) != value]
        self.client.log_batch(run.run_id, params=new, tags=changed)

    def upload(self, run: TrackedRun, path: Path, folder: str) -> None:
        """Keep the file as an artifact of the run."""
        self.write(lambda: self.client.log_artifact(run.run_id, str(path), folder))


def _make_database(path: Path) -> None:
    """Make the tables of a new SQLite store beside it and rename them into place.

    MLflow makes them step by step without a lock of its own: two sweeps that start at once, or a Ctrl-C in between,
    would leave a database that no later command can use.
    """
    with FileLock(path.with_name(f"{path.name}.lock")):
        if path.exists():
            return
        part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
        try:
            _new_client(f"sqlite:///{part}").search_experiments(max_results=1)
            part.rename(path)
        finally:
            part.unlink(missing_ok=True)


def _new_client(uri: str) -> "MlflowClient":
    from mlflow import MlflowClient

    # MLflow narrates the making of a database and logs each database error with a traceback before raising it.
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    logging.getLogger("alembic").setLevel(logging.ERROR)
    return MlflowClient(tracking_uri=uri)


def _may_pass(cause: BaseException | None) -> bool:
    return getattr(cause, "error_code", "") == "TEMPORARILY_UNAVAILABLE"


def tracked(run: "Run") -> TrackedRun:
    """The part of an MLflow run that a sweep needs."""
    info, tags = run.info, run.data.tags
    return TrackedRun(info.run_id, info.experiment_id, info.run_name or "", info.status, tags.get("trial.identity"))


def _first_line(error: Exception) -> str:
    return shorten((str(error).splitlines() or [type(error).__name__])[0], 300)


def _pages(search: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[Any]:
    token = None
    while True:
        page = search(*args, page_token=token, **kwargs)
        yield from page
        token = page.token
        if not token:
            return
