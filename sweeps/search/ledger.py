"""What the study is told of the trials, and what it suggests next. Knows nothing of Ray.

The trials' folders are the truth. A search may be killed between any two statements; when it goes on, a trial that the
study believes to be RUNNING has a result on disk, or was stopped there, and the study is told so; or it is taken up
again under its own number, from its own checkpoints. A suggestion that has been tried is told from what that trial
found. So no trial is repeated and none forgotten.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from storage.curves import Curve
from sweeps.folder import SweepFolder
from sweeps.folder_files import NOT_FINISHED
from sweeps.interrupts import held_back
from sweeps.planned import PlannedTrial
from sweeps.search.outcome import REASON, RUN_ID, Outcome, as_twin, failed, is_finite
from sweeps.search.plan import SearchPlan
from sweeps.search.stops import Stop, read_stop, write_stop
from sweeps.search.study import make_sampler


class Ledger:
    """The study of one search, its folder, and the way between them. Called from the driver's process only."""

    def __init__(
        self,
        study: optuna.Study,
        plan: SearchPlan,
        folder: SweepFolder,
        run_id: Callable[[PlannedTrial], str | None] = lambda trial: None,
    ) -> None:
        """`run_id` looks up a trial's run in the tracking store."""
        self.study, self.plan, self.folder, self.run_id = study, plan, folder, run_id
        self.planned: dict[int, PlannedTrial] = {}
        """By number, every trial that the study has suggested."""
        self.suggestions: dict[int, dict[str, Any]] = {}
        """By number, the arm and the settings."""
        self.numbers: dict[str, int] = {}
        """The numbers by the trials' labels."""
        self.live: dict[int, optuna.Trial] = {}
        """The RUNNING ones, of which reports may come."""
        self.waiting: deque[int] = deque()
        """Numbers that an earlier command left behind, to be run first."""
        self.runner: dict[str, int] = {}
        """By identity, the number of the trial that runs it or has run it."""
        self.followers: dict[int, list[int]] = {}
        """By the number of a running trial, those with the same settings, which wait for its end."""
        for frozen in self._trials():
            self._read(frozen)

    def _read(self, frozen: FrozenTrial) -> None:
        if frozen.state.is_finished():
            try:
                suggestion = self.plan.space.suggest(optuna.trial.FixedTrial(frozen.params))
            except ValueError:
                # Somebody else's, added to the study by hand: it teaches the sampler, and has no folder here.
                return
            planned = self._enter(frozen.number, suggestion)
            self.runner.setdefault(planned.identity, frozen.number)
        elif frozen.state == TrialState.RUNNING:
            with held_back():
                # What it had been given is kept; where the kill came in between, the rest is sampled now.
                self.study.sampler = make_sampler(self.plan.settings.search.seed, frozen.number)
                self._adopt(optuna.Trial(self.study, frozen._trial_id))

    def settle(self) -> None:
        """Tell the study what the disk knows of its RUNNING trials; those that it knows nothing of are to be run."""
        for number in sorted(self.live):
            self._place(number)

    def next(self) -> PlannedTrial | None:
        """The next trial to run; None when the study has as many as it is to have."""
        while True:
            if self.waiting:
                return self.planned[self.waiting.popleft()]
            if self.suggested() >= self.plan.count:
                return None
            with held_back():
                number = self._ask()
            self._place(number)

    def suggested(self) -> int:
        """Trials that the study has suggested so far, whatever became of them."""
        return sum(one.state != TrialState.WAITING for one in self._trials())

    def report(self, trial: PlannedTrial, step: int, curve: Curve, history: Sequence[dict[str, Any]] = ()) -> bool:
        """Report the objective of a running trial after `step` steps; True when the trial is to be stopped here."""
        number, steps = self.number(trial), self.plan.settings.trial.steps
        values = self.plan.objective.values(curve)
        told = self._frozen(number).intermediate_values
        if not self.plan.stops_early or step >= steps or step < max(told, default=0) or not is_finite(values):
            return False
        with held_back():
            if step not in told:
                self.live[number].report(values[0], step)
            if not self.live[number].should_prune():
                return False
            stop = Stop(
                identity=trial.identity, step=step, steps=steps, values={**told, step: values[0]}, history=list(history)
            )
            write_stop(self.folder.trial(trial), stop)
        return True

    def end(self, trial: PlannedTrial, *, error: bool = False) -> None:
        """Tell the study how a trial ended, by what it left on disk; `error`: its process failed."""
        unknown = "its process ended" if error else "it ended without a result"
        outcome = self._on_disk(trial) or failed(self.folder.failure(trial) or unknown)
        self._tell(self.number(trial), outcome)

    def close(self) -> None:
        """Leave no RUNNING trial behind."""
        for number in sorted(self.live):
            if number in self.live:
                self._tell(number, self._on_disk(self.planned[number]) or failed(NOT_FINISHED))

    def link(self, trial: PlannedTrial) -> None:
        """Write the id of the trial's run in the tracking store into the study, once it is known."""
        number = self.number(trial)
        run_id = self.run_id(trial)
        if number in self.live and run_id and RUN_ID not in self._frozen(number).user_attrs:
            with held_back():
                self.live[number].set_user_attr(RUN_ID, run_id)

    def tags(self, number: int) -> dict[str, str]:
        """What leads from a run in the tracking store to the trial in the study."""
        return {"optuna.study": self.study.study_name, "optuna.number": str(number)}

    def number(self, trial: PlannedTrial) -> int:
        """The number of a trial in the study."""
        return self.numbers[trial.label]

    def stop_of(self, trial: PlannedTrial) -> Stop | None:
        """What is on disk of its early stop."""
        return read_stop(self.folder.trial(trial), trial.identity)

    def _trials(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)

    def _frozen(self, number: int) -> FrozenTrial:
        return self._trials()[number]

    def _ask(self) -> int:
        trials = self._trials()
        self.study.sampler = make_sampler(self.plan.settings.search.seed, len(trials))
        return self._adopt(self.study.ask())

    def _adopt(self, trial: optuna.Trial) -> int:
        """Take a RUNNING trial of the study into the books; its number."""
        planned = self._enter(trial.number, self.plan.space.suggest(trial))
        self.live[trial.number] = trial
        for name, value in {"identity": planned.identity, "folder": planned.name}.items():
            if trial.user_attrs.get(name) != value:
                trial.set_user_attr(name, value)
        return trial.number

    def _enter(self, number: int, suggestion: dict[str, Any]) -> PlannedTrial:
        planned = self.plan.planned(number, suggestion)
        self.planned[number], self.suggestions[number], self.numbers[planned.label] = planned, suggestion, number
        return planned

    def _place(self, number: int) -> None:
        """Tell a RUNNING trial that has its answer already; let others wait for their turn, or for a twin that runs."""
        planned = self.planned[number]
        runner = self.runner.setdefault(planned.identity, number)
        known = self._on_disk(planned) or (self._of_twin(runner) if runner != number else None)
        if known is not None:
            self._tell(number, known)
        elif runner != number:
            self.followers.setdefault(runner, []).append(number)
        else:
            self.waiting.append(number)

    def _on_disk(self, trial: PlannedTrial) -> Outcome | None:
        """How a trial ended by its folder, or by that of a reference with its settings; None where it did not end."""
        twins = [reference for reference in self.plan.trials if reference.identity == trial.identity]
        for one in (trial, *twins):
            result = self.folder.result(one)
            if result is not None:
                outcome = self._of_curve(self.folder.curves(one, result)["select"])
                return as_twin(outcome, one.label) if one is not trial else outcome
        stop = self.stop_of(trial)
        return None if stop is None else Outcome(state=TrialState.PRUNED, steps=stop.values)

    def _of_curve(self, curve: Curve) -> Outcome:
        values = self.plan.objective.values(curve)
        if is_finite(values):
            return Outcome(state=TrialState.COMPLETE, values=values)
        return failed(f"the objective {self.plan.objective.name} is not finite: {', '.join(map(str, values))}")

    def _of_twin(self, number: int) -> Outcome | None:
        """The outcome of the trial of this number, for one with the same settings; None while it runs."""
        twin = self._frozen(number)
        if not twin.state.is_finished():
            return None
        pruned = twin.state == TrialState.PRUNED
        outcome = Outcome(
            state=twin.state,
            values=tuple(twin.values or ()) if twin.state == TrialState.COMPLETE else (),
            steps=dict(twin.intermediate_values) if pruned else {},
            attrs={name: twin.user_attrs[name] for name in (REASON, RUN_ID) if name in twin.user_attrs},
        )
        return as_twin(outcome, f"trial {number}")

    def _tell(self, number: int, outcome: Outcome) -> None:
        """End a RUNNING trial in the study, and with it those that wait for it."""
        self.link(self.planned[number])
        with held_back():
            trial = self.live[number]
            told = self._frozen(number).intermediate_values
            for step, value in outcome.steps.items():
                if step not in told:
                    trial.report(value, step)
            for name, attr in outcome.attrs.items():
                trial.set_user_attr(name, attr)
            self.study.tell(trial, list(outcome.values) or None, state=outcome.state)
            del self.live[number]
        for follower in self.followers.pop(number, []):
            self._tell(follower, self._of_twin(number) or failed(NOT_FINISHED))
