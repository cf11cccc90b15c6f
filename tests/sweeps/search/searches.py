"""A search whose trials end as a test says: a real plan, folder and study, with curves written in place of training."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import optuna
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial

from storage.curve_files import write_curve
from storage.curves import Curve
from sweeps.folder import SweepFolder
from sweeps.planned import PlannedTrial
from sweeps.search.ledger import Ledger
from sweeps.search.plan import SearchPlan, make_search_plan
from sweeps.search.study import open_study, study_name
from tests.curve_makers import make_curve
from workers.trial_files import FAILURE, HISTORY, RESULT

SMALL = ("base.checkpoint=fresh", "trial.steps=9", "eval.every=1", "eval.length=1024", "eval.select_windows=2")


def small_plan(space: str = "noise", *assignments: str, objective: str = "far", count: int = 6) -> SearchPlan:
    """A search of nine steps a trial, with evaluations after each of them."""
    return make_search_plan(space, objective, count, "demo", [*SMALL, *assignments])


def select_curve(nll: float, length: int = 1024) -> Curve:
    """A curve whose mean NLL past 64 positions is `nll` exactly."""
    curve = make_curve(nll, length=length, documents=2, spread=0.0)
    return replace(curve, nll_sum=(curve.count * nll).astype(np.float64), split="select")


@dataclass
class Bench:
    """One search in one folder, whose study can be opened again as a new command would."""

    plan: SearchPlan
    folder: SweepFolder
    open_storage: Callable[[], BaseStorage]

    def ledger(self, plan: SearchPlan | None = None) -> Ledger:
        """The ledger of a new command; `plan` in place of the bench's own."""
        chosen = plan or self.plan
        ledger = Ledger(self.study(chosen), chosen, self.folder)
        ledger.settle()
        return ledger

    def study(self, plan: SearchPlan | None = None) -> optuna.Study:
        """The study, opened as a new command would."""
        chosen = plan or self.plan
        self.opened = open_study(chosen, self.open_storage(), study_name(chosen, self.folder.sweep_id))
        return self.opened

    def trials(self) -> list[FrozenTrial]:
        """The trials of the study that was opened last, read back from its store."""
        return optuna.load_study(study_name=self.opened.study_name, storage=self.opened._storage).get_trials()

    def finish(self, trial: PlannedTrial, curve: Curve) -> None:
        """Leave the result of a finished trial on disk."""
        place = self.folder.trial(trial)
        place.mkdir(parents=True)
        write_curve(place / "select.parquet", curve)
        (place / HISTORY).write_text("[]")
        result = {"identity": trial.identity, "curves": {"select": "select.parquet"}}
        (place / RESULT).write_text(json.dumps(result))

    def fail(self, trial: PlannedTrial, reason: str) -> None:
        """Leave the reason of a failure on disk."""
        self.folder.trial(trial).mkdir(parents=True)
        (self.folder.trial(trial) / FAILURE).write_text(f"{reason}\n\ntraceback")

    def run(self, ledger: Ledger, nlls: Sequence[float]) -> list[PlannedTrial]:
        """Run one trial after the other to these values."""
        done = []
        for nll in nlls:
            trial = ledger.next()
            assert trial is not None
            self.finish(trial, select_curve(nll))
            ledger.end(trial)
            done.append(trial)
        return done


@contextmanager
def open_bench(root: Path, plan: SearchPlan, open_storage: Callable[[], BaseStorage]) -> Iterator[Bench]:
    """A bench in a folder of its own."""
    with SweepFolder(root, plan) as folder:
        folder.claim()
        yield Bench(plan, folder, open_storage)
