"""A study on Ray Tune: the events of its trials, and the run from the first suggestion to the last end."""

import shutil
from typing import Any

from ray.tune.experiment import Trial

from sweeps.planned import PlannedTrial
from sweeps.progress import Progress
from sweeps.ray_session import RaySession
from sweeps.recorder import Recorder
from sweeps.search.ledger import Ledger
from sweeps.search.searcher import StudyScheduler, StudySearcher
from sweeps.tune_driver import SweepEvents, fit, job_of, uses_gpus
from workers.trial_files import CHECKPOINTS


class SearchEvents(SweepEvents):
    """What a search does beside a sweep: links between run and study, and trials that are stopped early."""

    def __init__(self, ledger: Ledger, recorder: Recorder, progress: Progress) -> None:
        super().__init__([], ledger.folder, recorder, progress)
        self.ledger = ledger

    def suggested(self, planned: PlannedTrial) -> None:
        """A trial is about to run."""
        self.trials[planned.identity] = planned
        self.recorder.tags[planned.identity] = self.ledger.tags(self.ledger.number(planned))

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        super().on_trial_start(iteration, trials, trial, **info)
        self.ledger.link(self._planned(trial))

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        planned = self._planned(trial)
        stop = self.ledger.stop_of(planned)
        if stop is None or self.folder.result(planned) is not None:
            super().on_trial_complete(iteration, trials, trial, **info)
            return
        self.progress.stop(planned.label, stop.reason)
        self.recorder.stopped(planned, stop.reason, stop.history)
        shutil.rmtree(self.folder.trial(planned) / CHECKPOINTS, ignore_errors=True)


def run_study(ledger: Ledger, session: RaySession, recorder: Recorder, progress: Progress, at_once: int) -> None:
    """Run what waits in the ledger and what the study suggests, `at_once` trials at a time."""
    gpus = int(uses_gpus(ledger.plan.samples, session))
    events = SearchEvents(ledger, recorder, progress)
    searcher = StudySearcher(ledger, lambda trial: job_of(trial, ledger.folder, gpus), events.suggested)
    fit(
        ledger.folder,
        events,
        at_once,
        search_alg=searcher,
        scheduler=StudyScheduler(ledger, searcher),
        # The searcher says itself when there is no other; this only has to be enough.
        num_samples=ledger.plan.count + len(ledger.waiting),
    )
