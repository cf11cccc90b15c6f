"""One run of a search: references first, then what the study suggests, then plots and the table of its trials."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sweeps.continuation import check_continuation
from sweeps.folder import SweepFolder
from sweeps.folder_files import NOT_FINISHED
from sweeps.interrupts import catch_signals
from sweeps.machine import machine_cpus
from sweeps.planned import PlannedTrial
from sweeps.progress import Progress
from sweeps.ray_session import RaySession, ray_session
from sweeps.recorder import Recorder
from sweeps.search.plan import SearchPlan, check_store_of
from sweeps.session import Done, run_sweep

if TYPE_CHECKING:
    from sweeps.search.ledger import Ledger

MOST_AT_ONCE = 8
"""Trials, however large the cluster: what is suggested should know how others ended."""


def run_search(
    plan: SearchPlan, *, out: Path | None, fresh: bool, address: str | None, as_json: bool, store: str | None
) -> int:
    """Run the search to its end and return the exit code. Raises SettingError before anything has started."""
    check_store_of(plan, store)
    work = partial(_work, plan, store)
    return run_sweep(plan, out=out, fresh=fresh, address=address, as_json=as_json, work=work)


def _work(plan: SearchPlan, store: str | None, folder: SweepFolder, recorder: Recorder, address: str | None) -> Done:
    from sweeps.search.ledger import Ledger
    from sweeps.search.study import open_storage, open_study, store_url, study_name

    url = store_url(folder.root, store)
    study = open_study(plan, open_storage(url), study_name(plan, folder.sweep_id))
    ledger = Ledger(study, plan, folder, recorder.run_id)
    _catch_up(ledger, recorder)
    ledger.settle()
    # Taken up from their checkpoints, which another number of workers could not read.
    check_continuation(replace(plan, trials=tuple(ledger.planned[number] for number in ledger.waiting)), folder.root)
    missing = [trial for trial in plan.trials if folder.result(trial) is None]
    failures: dict[str, str] = {}
    if missing or ledger.waiting or ledger.suggested() < plan.count:
        _say_what_is_there(ledger, recorder)
        failures = _run(ledger, missing, recorder, address)
    if len(failures) < len(plan.trials):
        ledger.close()
    # What the tracking store could not take while trials ran.
    recorder.catch_up(list(ledger.planned.values()))
    return _done(ledger, failures, url)


def _catch_up(ledger: "Ledger", recorder: Recorder) -> None:
    """Write into the tracking store what an earlier command could not; the study links to these runs."""
    for number, trial in ledger.planned.items():
        recorder.tags.setdefault(trial.identity, ledger.tags(number))
        stop = ledger.stop_of(trial)
        if stop is not None:
            recorder.stops[trial.identity] = (stop.reason, stop.history)
    recorder.catch_up(list(ledger.planned.values()))


def _say_what_is_there(ledger: "Ledger", recorder: Recorder) -> None:
    plan, suggested = ledger.plan, ledger.suggested()
    if suggested:
        recorder.say(
            f"{suggested} of {plan.count} trials are in the study {ledger.study.study_name}; "
            f"{len(ledger.waiting)} of them go on, the others are not run again"
        )
    recorder.say(f"search: {plan.count - suggested} trials to suggest, results in {ledger.folder.root}")


def _run(ledger: "Ledger", missing: list[PlannedTrial], recorder: Recorder, address: str | None) -> dict[str, str]:
    """Run missing references, then the study; reasons of the references that failed, by identity."""
    plan, folder = ledger.plan, ledger.folder
    finished = len(plan.trials) - len(missing) + ledger.suggested() - len(ledger.waiting)
    failures: dict[str, str] = {}
    with ray_session(address, machine_cpus()) as session:
        catch_signals()  # ray.init has put its own handler in place
        from sweeps.search.tune_study import run_study
        from sweeps.tune_driver import run_trials

        at_once = _at_once(plan, session)
        with Progress(plan.number_of_trials, finished, at_once, plan.expected_seconds) as progress:
            recorder.say = progress.say
            if missing:
                failures = run_trials(missing, folder, session, recorder, progress)
            # Where neither the base nor the control can be measured, no suggestion can: the study is left as it is.
            if len(failures) < len(plan.trials):
                run_study(ledger, session, recorder, progress, at_once)
    return failures


def _at_once(plan: SearchPlan, session: RaySession) -> int:
    from sweeps.tune_driver import trials_at_once

    most = min(plan.count, MOST_AT_ONCE)
    return min(trials_at_once([plan.samples[number % len(plan.samples)] for number in range(most)], session), most)


def _done(ledger: "Ledger", failures: dict[str, str], url: str) -> Done:
    from sweeps.search.plots import write_plots
    from sweeps.search.trial_table import best_trials, summary_lines, trial_rows, write_trial_table

    plan, folder = ledger.plan, ledger.folder
    rows = [row for row in trial_rows(ledger) if row.state != "RUNNING"]
    lost = [trial for trial in plan.trials if folder.result(trial) is None]
    failed = [(trial, failures.get(trial.identity, NOT_FINISHED)) for trial in lost]
    failed += [(ledger.planned[row.number], row.reason) for row in rows if row.state == "FAIL"]
    folder.report.mkdir(parents=True, exist_ok=True)
    files = [*write_trial_table(folder.report, plan.objective.names, rows), *write_plots(folder.report, ledger.study)]
    return Done(
        plan=replace(plan, trials=(*plan.trials, *best_trials(ledger))),
        finished=len(plan.trials) - len(lost) + sum(row.state != "FAIL" for row in rows),
        failed=failed,
        files=files,
        lines=[*summary_lines(ledger, rows), f"study: optuna-dashboard {url.removeprefix('journal:')}"],
        more={"objective": plan.objective.meaning, "search_trials": [row.as_json() for row in rows]},
    )
