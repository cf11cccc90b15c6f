"""One run of the command: check, continue or start, run what is missing on Ray, report, end every run in the store."""

import json
import os
import sys
import time
from pathlib import Path

from rich.console import Console

from storage.errors import StorageError
from storage.files import write_json
from storage.tracking import Tracker, TrackingError
from sweeps.dry_run import check_before_start
from sweeps.folder import SESSION, SweepFolder
from sweeps.interrupts import catch_signals, exit_code
from sweeps.machine import machine_cpus
from sweeps.plan import SweepPlan
from sweeps.progress import Progress
from sweeps.ray_session import RayStartError, ray_session
from sweeps.recorder import Recorder
from sweeps.report import Report, make_report
from sweeps.settings import SettingError
from sweeps.tables import failed_line
from sweeps.windows import check_windows

DONE, FAILED, SOME_FAILED = 0, 1, 3


def run_sweep(plan: SweepPlan, *, out: Path | None, fresh: bool, address: str | None, as_json: bool) -> int:
    """Run the sweep to its end and return the exit code. Raises SettingError before anything has started."""
    address = address or os.environ.get("RAY_ADDRESS") or None
    catch_signals()
    root = check_before_start(plan, out, address, fresh=fresh)
    with SweepFolder(root, plan) as folder:
        windows = check_windows([trial.config for trial in plan.trials], folder.cache)
        folder.check_documents(windows.report_documents)
        if windows.skipped:
            _say(f"{windows.skipped} training documents are shorter than the longest training window and are skipped")
        folder.claim()
        recorder = _make_recorder(plan, folder)
        try:
            recorder.open()
            failures = _run_missing(plan, folder, recorder, address)
            return _finish(plan, folder, recorder, failures, as_json=as_json)
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


def _run_missing(plan: SweepPlan, folder: SweepFolder, recorder: Recorder, address: str | None) -> dict[str, str]:
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
        expected = max(trial.expected_seconds for trial in missing)
        with Progress(len(plan.trials), finished, at_once, expected) as progress:
            recorder.say = progress.say
            failures = run_trials(missing, folder, session, recorder, progress)
    seconds = time.monotonic() - started
    write_json(folder.root / SESSION, {"seconds": seconds, "trials": len(missing), "at_once": at_once})
    return failures


def _finish(
    plan: SweepPlan, folder: SweepFolder, recorder: Recorder, failures: dict[str, str], *, as_json: bool
) -> int:
    done = [trial for trial in plan.trials if folder.result(trial) is not None]
    failed = [(t, failures.get(t.identity, "it did not run to its end")) for t in plan.trials if t not in done]
    recorder.say = _say
    report = make_report(plan, folder, failed)
    recorder.catch_up(plan.trials)
    recorder.log_report(report.files)
    code = DONE if not failed else SOME_FAILED if done else FAILED
    recorder.close("FINISHED" if code == DONE else "FAILED", None if code == DONE else f"{len(failed)} trials failed")
    if as_json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        _print_report(folder, recorder, report)
    return code


def _print_report(folder: SweepFolder, recorder: Recorder, report: Report) -> None:
    Console(width=None if os.isatty(1) else 160).print(report.table())
    for trial in report.failed:
        print(f"failed: {failed_line(trial)}")
    for path in report.files:
        if path.suffix in (".png", ".html"):
            print(f"figure: {_short(path)}")
    print(f"results: {_short(folder.root)}")
    print(f"runs: mlflow ui --backend-store-uri {folder.plan.settings.tracking.uri}")
    print(f"      then the overlaid curves are at http://127.0.0.1:5000/{recorder.view_path().lstrip('/')}")


def _interrupted(folder: SweepFolder, recorder: Recorder, *, fresh: bool) -> int:
    recorder.say = _say
    recorder.close("KILLED", "interrupted")
    finished = sum(folder.result(trial) is not None for trial in folder.plan.trials)
    _say(
        f"interrupted; {finished} of {len(folder.plan.trials)} trials are finished and kept in {_short(folder.root)}. "
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
