"""A whole small search on Ray Tune: real trials, some stopped early, and a second command that continues it."""

from pathlib import Path
from typing import Any

import pytest
from optuna.storages import JournalStorage
from optuna.trial import TrialState

from storage.tracking import Tracker
from sweeps.folder import SweepFolder
from sweeps.progress import Progress
from sweeps.ray_session import RaySession
from sweeps.recorder import Recorder
from sweeps.search.ledger import Ledger
from sweeps.search.outcome import RUN_ID
from sweeps.search.plan import SearchPlan, make_search_plan
from sweeps.search.study import open_storage, open_study, study_name
from sweeps.search.tune_study import run_study

pytestmark = [pytest.mark.ray, pytest.mark.slow]
SMALL = (
    *("base.checkpoint=fresh", "trial.steps=3", "trial.rows=4", "trial.checkpoint_every=1", "eval.every=1"),
    *("eval.length=128", "eval.windows=1", "eval.select_windows=1", "eval.chunk=64"),
    # Of two trials at a rung one goes on, whichever it is.
    *("sweep.arms=random_noise", "search.reduction=2", "optimizer.peak_lr=3e-3"),
)
SESSION = RaySession(cpus=2, gpus=0, is_private=True, hosts_drivers=True)


def run(root: Path, count: int) -> tuple[Ledger, dict[str | None, str]]:
    """One command's part of the search: the ledger and the status of each trial's run by identity."""
    plan: SearchPlan = make_search_plan("noise", "far", count, "demo", list(SMALL))
    with SweepFolder(root / "out", plan) as folder:
        folder.claim()
        recorder = Recorder(Tracker(f"sqlite:///{root}/mlflow.db"), folder, print)
        recorder.open()
        storage = open_storage(f"journal:{root}/study.log")
        assert isinstance(storage, JournalStorage)
        study = open_study(plan, storage, study_name(plan, folder.sweep_id))
        ledger = Ledger(study, plan, folder, recorder.run_id)
        ledger.settle()
        with Progress(count, 0, 1, 1.0) as progress:
            run_study(ledger, SESSION, recorder, progress, at_once=1)
        ledger.close()
        recorder.close("FINISHED")
        runs = recorder.tracker.runs_of(folder.sweep_id)
        for number, trial in ledger.planned.items():
            told = study.get_trials()[number]
            (own,) = (one for one in runs if one.identity == trial.identity)
            assert told.user_attrs[RUN_ID] == own.run_id
            tags = recorder.tracker._store.client.get_run(own.run_id).data.tags
            assert (tags["optuna.study"], tags["optuna.number"]) == (study.study_name, str(number))
        return ledger, {one.identity: one.status for one in runs}


@pytest.mark.timeout(600)
def test_a_search_stops_a_trial_early_and_is_continued(ray_cluster: Any, tmp_path: Path) -> None:
    ledger, status = run(tmp_path, 4)
    first = ledger.study.get_trials()
    states = [told.state for told in first]
    assert set(states) == {TrialState.COMPLETE, TrialState.PRUNED}, "each trial ended, one way or the other"
    for told in first:
        planned = ledger.planned[told.number]
        if told.state == TrialState.COMPLETE:
            # Two evaluations on the way, the third being the end.
            assert set(told.intermediate_values) == {1, 2} and status[planned.identity] == "FINISHED"
            assert ledger.folder.result(planned) is not None
        else:
            assert told.last_step in (1, 2) and told.value == told.intermediate_values[told.last_step]
            assert ledger.folder.result(planned) is None and status[planned.identity] == "KILLED"
            stop = ledger.stop_of(planned)
            assert stop is not None and [entry["step"] for entry in stop.history] == [*range(1, stop.step + 1)]
            assert not (ledger.folder.trial(planned) / "checkpoints").exists()

    again, _ = run(tmp_path, 5)
    second = again.study.get_trials()
    assert [told.datetime_complete for told in second[:4]] == [told.datetime_complete for told in first]
    assert second[4].state in (TrialState.COMPLETE, TrialState.PRUNED)
    assert len({told.user_attrs["identity"] for told in second}) == 5
