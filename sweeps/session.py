"""One run of the command: check, continue or start, run what is missing on Ray, report, end every run in the store."""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from storage.errors import StorageError
from storage.files import write_json
from storage.tracking import Tracker, TrackingError
from sweeps.dry_run import check_before_start
from sweeps.folder import SweepFolder
from sweeps.folder_files import NOT_FINISHED, SESSION
from sweeps.interrupts import catch_signals, exit_code
from sweeps.kernel_check import check_kernels
from sweeps.machine import machine_cpus, this_machine
from sweeps.pickled_bases import check_pickled_bases
from sweeps.planned import PlannedTrial, SweepPlan
from sweeps.progress import Progress
from sweeps.ray_session import RayStartError, ray_session
from sweeps.recorder import Recorder
from sweeps.report.make import Report, make_report
from sweeps.report.tables import failed_line
from sweeps.settings import SettingError
from sweeps.windows import check_windows
from workers.trial_files import RESULT

DONE, FAILED, SOME_FAILED = 0, 1, 3


@dataclass(frozen=True, kw_only=True)
class Done:
    """What a session has done, for its report and its exit code."""

    plan: SweepPlan
    """Its trials are those that the report shows."""
    finished: int
    """Trials that have a result, of this session or of an earlier one."""
    failed: list[tuple[PlannedTrial, str]]
    """Trials that have none, and why."""
    files: list[Path] = field(default_factory=list)
    """Kept with the report's."""
    lines: list[str] = field(default_factory=list)
    """Said below the report's table."""
    more: dict[str, Any] = field(default_factory=dict)
    """Added to what `--json` prints."""


Work = Callable[[SweepFolder, Recorder, str | None], Done]
"""(open folder, open recorder, address of the cluster) -> what was done. A search has work of its own."""


def run_sweep(
    plan: SweepPlan, *, out: Path | None, fresh: bool, address: str | None, as_json: bool, work: Work | None = None
) -> int:
    """Run the sweep to its end and return the exit code. Raises SettingError before anything has started."""
    address = address or os.environ.get("RAY_ADDRESS") or None
    catch_signals()
    root = check_before_start(plan, out, address, fresh=fresh)
    if plan.needs_gpus and not address:
        check_kernels(plan, this_machine())
    check_pickled_bases(trial.config for trial in plan.possible)
    with SweepFolder(root, plan) as folder:
        windows = check_windows([trial.config for trial in plan.possible], folder.cache, _say)
        folder.check_documents(windows.report_documents)
        if windows.skipped:
            _say(f"{windows.skipped} training documents are shorter than the longest training window and are skipped")
        folder.claim()
        recorder = _make_recorder(plan, folder)
        try:
            recorder.open()
            done = (work or _run_missing)(folder, recorder, address)
            return _finish(done, folder, recorder, as_json=as_json)
        except KeyboardInterrupt:
            return _interrupted(folder, recorder, fresh=fresh)
        except TrackingError as error:
            recorder.close("FAILED", str(error))
            raise SettingError(str(error)) from error
        except RayStartError as error:
            recorder.close("FAILED", str(error))
            _say(f"error: {error}")
            return FAILED
        except BaseException as error:
            recorder.close("FAILED", f"{type(error).__name__}: {error}")
            raise


def _make_recorder(plan: SweepPlan, folder: SweepFolder) -> Recorder:
    try:
        return Recorder(Tracker(plan.settings.tracking.uri), folder, _say)
    except StorageError as error:
        raise SettingError(str(error)) from error


def _run_missing(folder: SweepFolder, recorder: Recorder, address: str | None) -> Done:
    """Run the trials of the plan that have no result yet."""
    plan = folder.plan
    failures = _failures_of_missing(plan, folder, recorder, address)
    done = [trial for trial in plan.trials if folder.result(trial) is not None]
    failed = [(t, failures.get(t.identity, NOT_FINISHED)) for t in plan.trials if t not in done]
    return Done(plan=plan, finished=len(done), failed=failed)


def _failures_of_missing(
    plan: SweepPlan, folder: SweepFolder, recorder: Recorder, address: str | None
) -> dict[str, str]:
    """Run the trials that have no result yet; reasons of those that failed twice, by identity."""
    missing = [trial for trial in plan.trials if folder.result(trial) is None]
    finished = len(plan.trials) - len(missing)
    if finished:
        _say(f"{finished} of {len(plan.trials)} trials are finished in {folder.root}; they are not run again")
    if not missing:
        return {}
    _say(f"{plan.sweep.name}: {len(missing)} trials to run, results in {folder.root}")
    started = time.monotonic()
    with ray_session(address, machine_cpus()) as session:
        catch_signals()  # ray.init has put its own handler in place
        from sweeps.tune_driver import run_trials, trials_at_once

        at_once = trials_at_once(missing, session)
        expected = sum(trial.expected_seconds for trial in missing) / len(missing)
        with Progress(len(plan.trials), finished, at_once, expected) as progress:
            recorder.say = progress.say
            failures = run_trials(missing, folder, session, recorder, progress)
    seconds = time.monotonic() - started
    write_json(folder.root / SESSION, {"seconds": seconds, "trials": len(missing), "at_once": at_once})
    return failures


def _finish(done: Done, folder: SweepFolder, recorder: Recorder, *, as_json: bool) -> int:
    failed = done.failed
    recorder.say = _say
    report = make_report(done.plan, folder, failed)
    recorder.catch_up(done.plan.trials)
    recorder.log_report([*report.files, *done.files])
    code = DONE if not failed else SOME_FAILED if done.finished else FAILED
    recorder.close("FINISHED" if code == DONE else "FAILED", None if code == DONE else f"{len(failed)} trials failed")
    if as_json:
        print(json.dumps({**report.as_json(), **done.more}, indent=2))
    else:
        _print_report(folder, recorder, report, done)
    return code


def _print_report(folder: SweepFolder, recorder: Recorder, report: Report, done: Done) -> None:
    Console(width=None if os.isatty(1) else 160).print(report.table())
    for trial in report.failed:
        print(f"failed: {failed_line(trial)}")
    for path in (*report.shown, *(path for path in done.files if path.suffix == ".png")):
        print(f"figure: {_short(path)}")
    for line in done.lines:
        print(line)
    print(f"results: {_short(folder.root)}")
    print(f"runs: mlflow ui --backend-store-uri {folder.plan.settings.tracking.uri}")
    print(f"      then the overlaid curves are at http://127.0.0.1:5000/{recorder.view_path().lstrip('/')}")


def _interrupted(folder: SweepFolder, recorder: Recorder, *, fresh: bool) -> int:
    recorder.say = _say
    recorder.close("KILLED", "interrupted")
    finished = len(list(folder.root.glob(f"trials/*/{RESULT}")))
    _say(
        f"interrupted; {finished} of {folder.plan.number_of_trials} trials are finished and kept in "
        f"{_short(folder.root)}. "
        + (
            f"The same command with --out {_short(folder.root)} in place of --fresh continues."
            if fresh
            else "The same command continues."
        )
    )
    return exit_code()


def _short(path: Path) -> str:
    """The path from here, where that is shorter."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
