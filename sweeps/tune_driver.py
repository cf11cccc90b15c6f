"""Runs the trials of a sweep on Ray Tune: concurrency, one retry, and what happens at each event of a trial."""

import shutil
from collections.abc import Sequence
from typing import Any

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from sweeps.folder import SweepFolder
from sweeps.planned import PlannedTrial
from sweeps.progress import Progress
from sweeps.ray_session import RaySession
from sweeps.recorder import Recorder
from sweeps.settings import SettingError
from workers.trainable import DRIVER_RESOURCE, TrialJob, run_trial, trial_name, trial_resources

RETRIES = 1


class SweepEvents(tune.Callback):
    """Passes Tune's events on to progress, recorder and folder. Runs in the driver's process."""

    def __init__(
        self, trials: Sequence[PlannedTrial], folder: SweepFolder, recorder: Recorder, progress: Progress
    ) -> None:
        self.trials = {trial.identity: trial for trial in trials}
        self.folder = folder
        self.recorder = recorder
        self.progress = progress
        self.failures: dict[str, str] = {}
        """Reason by identity, of the trials that failed for good."""

    def __getstate__(self) -> dict[str, Any]:
        # Tune pickles its callbacks beside the experiment. Nothing is ever restored from there: a sweep continues from
        # its own folder, and open displays and stores cannot be pickled.
        return {}

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        planned = self._planned(trial)
        self.progress.start(planned.label)
        self.recorder.started(planned)

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        planned = self._planned(trial)
        self.progress.report(planned.label, result)
        self.recorder.progressed(planned, result["history"])

    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        planned = self._planned(trial)
        self.progress.say(f"{planned.label}: failed once ({self._reason(planned, trial)}); it is tried again")

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        planned = self._planned(trial)
        result = self.folder.result(planned)
        if result is None:
            self._fail(planned, self.folder.failure(planned) or "it ended without a result")
            return
        self.progress.finish(planned.label)
        self.recorder.finished(planned, result)

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        planned = self._planned(trial)
        self._fail(planned, self._reason(planned, trial))

    def _fail(self, planned: PlannedTrial, reason: str) -> None:
        self.failures[planned.identity] = reason
        self.progress.fail(planned.label, reason)
        self.recorder.failed(planned, reason)

    def _planned(self, trial: Trial) -> PlannedTrial:
        return self.trials[trial.config["job"]["identity"]]

    def _reason(self, planned: PlannedTrial, trial: Trial) -> str:
        written = self.folder.failure(planned)
        if written:
            return written
        # A process that was killed could not write why.
        error = trial.get_error()
        lines = [line for line in str(error).splitlines() if line.strip()] if error else []
        return lines[-1].strip() if lines else "its process ended"


def run_trials(
    trials: Sequence[PlannedTrial],
    folder: SweepFolder,
    session: RaySession,
    recorder: Recorder,
    progress: Progress,
) -> dict[str, str]:
    """Run these trials to their end, each after the one whose model it starts from; reasons of failures by identity."""
    finished = {trial.identity for trial in folder.plan.trials if folder.result(trial) is not None}
    waiting, failures = list(trials), dict[str, str]()
    while waiting:
        ready = [trial for trial in waiting if trial.base is None or trial.base in finished]
        if not ready:
            return failures | _give_up(waiting, recorder, progress)
        failures |= _run_at_once(ready, folder, session, recorder, progress)
        finished |= {trial.identity for trial in ready if folder.result(trial) is not None}
        waiting = [trial for trial in waiting if trial not in ready]
    return failures


def _give_up(trials: Sequence[PlannedTrial], recorder: Recorder, progress: Progress) -> dict[str, str]:
    lost = {trial.identity: "the trial whose model it starts from did not finish" for trial in trials}
    for trial in trials:
        progress.fail(trial.label, lost[trial.identity])
        recorder.failed(trial, lost[trial.identity])
    return lost


def _run_at_once(
    trials: Sequence[PlannedTrial],
    folder: SweepFolder,
    session: RaySession,
    recorder: Recorder,
    progress: Progress,
) -> dict[str, str]:
    """Run these trials, none of which waits for another; reasons of those that failed twice, by identity."""
    gpus = int(uses_gpus(trials, session))
    concurrency = trials_at_once(trials, session)
    events = SweepEvents(trials, folder, recorder, progress)
    jobs = [job_of(trial, folder, gpus).as_dict() for trial in trials]
    fit(folder, events, concurrency, param_space={"job": tune.grid_search(jobs)})
    return events.failures


def fit(
    folder: SweepFolder,
    events: SweepEvents,
    concurrency: int,
    *,
    param_space: dict[str, Any] | None = None,
    search_alg: Searcher | None = None,
    scheduler: TrialScheduler | None = None,
    num_samples: int = 1,
) -> None:
    """Run trials to their end: those of the `param_space`, or up to `num_samples` that `search_alg` suggests."""
    scratch = folder.root / "tune"
    shutil.rmtree(scratch, ignore_errors=True)
    tuner = tune.Tuner(
        tune.with_resources(run_trial, trial_resources),
        param_space=param_space,
        tune_config=tune.TuneConfig(
            search_alg=search_alg,
            scheduler=scheduler,
            num_samples=num_samples,
            max_concurrent_trials=concurrency,
            trial_name_creator=trial_name,
            trial_dirname_creator=trial_name,
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(folder.root),
            verbose=0,
            callbacks=[events],
            failure_config=tune.FailureConfig(max_failures=RETRIES),
        ),
    )
    tuner.fit()
    shutil.rmtree(scratch, ignore_errors=True)


def uses_gpus(trials: Sequence[PlannedTrial], session: RaySession) -> bool:
    """Whether each worker gets a GPU. Raises SettingError for GPUs that are asked for and cannot come."""
    device = trials[0].config.trial.device
    if device == "cuda" and session.is_private and not session.gpus:
        raise SettingError("trial.device is 'cuda', but this machine has no GPU; write trial.device=cpu")
    return device == "cuda" or (device == "auto" and session.gpus > 0)


def trials_at_once(trials: Sequence[PlannedTrial], session: RaySession) -> int:
    """How many trials run at once. Raises SettingError when the cluster cannot hold a single one."""
    workers = max(trial.config.trial.workers for trial in trials)
    cpus = max(trial.cpus for trial in trials)
    gpus = workers if uses_gpus(trials, session) else 0
    if workers > 1 and not session.hosts_drivers:
        raise SettingError(
            f"trials with several workers need a node that hosts their drivers; start the cluster's head with "
            f"--resources='{{\"{DRIVER_RESOURCE}\": 64}}', as cluster.yaml does"
        )
    if trials[0].config.trial.device == "cuda" and not session.is_private:
        # Trials that wait are what makes an autoscaler bring machines; worker groups would give up waiting.
        return len(trials) if workers == 1 else max(1, session.gpus // workers)
    if cpus > session.cpus or gpus > session.gpus:
        raise SettingError(
            f"a trial asks for {cpus} CPUs and {gpus} GPUs, but the cluster has {session.cpus} and {session.gpus}; "
            "lower trial.workers or trial.threads"
        )
    return min(session.cpus // cpus, session.gpus // gpus if gpus else session.cpus)


def job_of(trial: PlannedTrial, folder: SweepFolder, gpus_per_worker: int) -> TrialJob:
    """What the trial's process is told."""
    return TrialJob(
        config=folder.config(trial).to_dict(),
        name=trial.name,
        identity=trial.identity,
        folder=str(folder.trial(trial)),
        cache=str(folder.cache),
        sweep_id=folder.sweep_id,
        gpus_per_worker=gpus_per_worker,
    )
