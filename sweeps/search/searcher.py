"""The two places where Ray Tune asks a search: which trial next, and whether one that reports is to go on.

Ray's own OptunaSearch leaves a trial RUNNING for ever when its objective is NaN, calls an early stop COMPLETE, repeats
its first suggestions after a restart, and fails on reports without the objective (Ray 2.60, Optuna 5.0).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from sweeps.planned import PlannedTrial
from sweeps.search.ledger import Ledger
from sweeps.search.objective import pooled_curve
from workers.trainable import TrialJob

if TYPE_CHECKING:
    from ray.tune.execution.tune_controller import TuneController


class StudySearcher(Searcher):
    """Hands Tune the trials of a ledger, and the ledger their ends."""

    def __init__(
        self,
        ledger: Ledger,
        make_job: Callable[[PlannedTrial], TrialJob],
        suggested: Callable[[PlannedTrial], None] = lambda trial: None,
    ) -> None:
        """`suggested` hears of every trial before Tune does."""
        super().__init__()
        self.ledger, self.make_job, self.suggested = ledger, make_job, suggested
        self.trials: dict[str, PlannedTrial] = {}
        """By Tune's id."""

    def __getstate__(self) -> dict[str, Any]:
        # Tune pickles its searcher with the experiment; nothing is ever restored from there, see `SweepEvents`.
        return {}

    def suggest(self, trial_id: str) -> dict[str, Any] | str:  # type: ignore[override]  # Ray's own word is a string
        """Tune's configuration of the next trial, or the word that there is none."""
        planned = self.ledger.next()
        if planned is None:
            return Searcher.FINISHED
        self.trials[trial_id] = planned
        self.suggested(planned)
        return {"job": self.make_job(planned).as_dict()}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Whatever the reason: what the trial left on disk says how it ended."""
        planned = self.trials.pop(trial_id, None)
        if planned is not None:
            self.ledger.end(planned, error=error)

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the study and the trials' folders hold everything."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing, as `save`."""


class StudyScheduler(FIFOScheduler):
    """Asks the ledger about each trial that reports an evaluation, and stops those that are not to go on."""

    def __init__(self, ledger: Ledger, searcher: StudySearcher) -> None:
        super().__init__()
        self.ledger, self.searcher = ledger, searcher

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def on_trial_result(self, tune_controller: "TuneController", trial: Trial, result: dict[str, Any]) -> str:
        """CONTINUE, or STOP. Reports of other kinds have no curve."""
        planned = self.searcher.trials.get(trial.trial_id)
        if planned is None or "select" not in result:
            return TrialScheduler.CONTINUE
        curve = pooled_curve(result["select"], planned.config.trial.context)
        stops = self.ledger.report(planned, result["step"], curve, result["history"])
        return TrialScheduler.STOP if stops else TrialScheduler.CONTINUE
