"""What every store must be told, whatever becomes of a trial: over memory, SQLite and journal."""

import math
from dataclasses import replace

import numpy as np
import pytest
from optuna.trial import TrialState
from ray.tune.search import Searcher

from sweeps.planned import PlannedTrial
from sweeps.search.outcome import REASON, RUN_ID, SAME_AS
from sweeps.search.searcher import StudySearcher
from sweeps.search.stops import read_stop
from sweeps.tune_driver import job_of
from tests.sweeps.search.conftest import OpenBench
from tests.sweeps.search.searches import Bench, select_curve, small_plan


def searcher_of(one: Bench) -> StudySearcher:
    return StudySearcher(one.ledger(), lambda trial: job_of(trial, one.folder, 0))


def suggested(searcher: StudySearcher, trial_id: str) -> PlannedTrial:
    assert isinstance(searcher.suggest(trial_id), dict)
    return searcher.trials[trial_id]


def test_tune_gets_the_job_of_each_trial_and_then_the_word_that_there_is_none(bench: OpenBench) -> None:
    one = bench(small_plan(count=2))
    searcher = searcher_of(one)
    config = searcher.suggest("a")
    assert isinstance(config, dict)
    first = searcher.trials["a"]
    assert config["job"]["identity"] == first.identity
    assert config["job"]["config"] == first.config.to_dict()
    assert searcher.suggest("b") != Searcher.FINISHED
    assert searcher.suggest("c") == Searcher.FINISHED


def test_a_finished_trial_is_complete_with_its_value_and_links(bench: OpenBench) -> None:
    one = bench(small_plan())
    ledger = one.ledger()
    ledger.run_id = lambda trial: f"run-of-{trial.identity[:4]}"
    (trial,) = one.run(ledger, [1.5])
    (told,) = one.trials()
    assert told.state == TrialState.COMPLETE and told.value == pytest.approx(1.5)
    assert told.user_attrs["identity"] == trial.identity
    assert told.user_attrs["folder"] == one.folder.trial(trial).name
    assert told.user_attrs[RUN_ID] == f"run-of-{trial.identity[:4]}"


@pytest.mark.parametrize("nll", [math.nan, math.inf])
def test_what_is_not_finite_fails_and_is_not_left_running(bench: OpenBench, nll: float) -> None:
    one = bench(small_plan())
    searcher = searcher_of(one)
    one.finish(suggested(searcher, "a"), select_curve(nll))
    searcher.on_trial_complete("a", {"done": True})
    (told,) = one.trials()
    assert (told.state, told.values) == (TrialState.FAIL, None)
    assert "far is not finite" in told.user_attrs[REASON]


def test_an_error_fails_with_its_reason(bench: OpenBench) -> None:
    one = bench(small_plan())
    searcher = searcher_of(one)
    one.fail(suggested(searcher, "a"), "NonFiniteStep: 6 steps in a row")
    suggested(searcher, "b")
    searcher.on_trial_complete("a", error=True)
    searcher.on_trial_complete("b", error=True)
    first, second = one.trials()
    assert [first.state, second.state] == [TrialState.FAIL, TrialState.FAIL]
    assert first.user_attrs[REASON] == "NonFiniteStep: 6 steps in a row"
    assert second.user_attrs[REASON] == "its process ended"


def test_steps_that_were_given_up_fail_though_tune_saw_no_error(bench: OpenBench) -> None:
    one = bench(small_plan())
    searcher = searcher_of(one)
    one.fail(suggested(searcher, "a"), "NonFiniteStep: 6 steps in a row")
    searcher.on_trial_complete("a", {"done": True})
    assert one.trials()[0].user_attrs[REASON] == "NonFiniteStep: 6 steps in a row"


def test_an_early_stop_is_pruned_with_its_intermediate_values(bench: OpenBench) -> None:
    one = bench(small_plan())
    searcher = searcher_of(one)
    good, bad = suggested(searcher, "a"), suggested(searcher, "b")
    ledger = searcher.ledger
    assert not ledger.report(good, 1, select_curve(1.0))
    assert not ledger.report(good, 2, select_curve(0.9)), "between two rungs no trial is stopped"
    assert ledger.report(bad, 1, select_curve(2.0), history=[{"step": 1, "loss": 3.0}])
    stop = read_stop(one.folder.trial(bad), bad.identity)
    assert stop is not None and (stop.step, stop.steps, stop.history) == (1, 9, [{"step": 1, "loss": 3.0}])
    searcher.on_trial_complete("b", {"done": True})
    told = one.trials()[1]
    assert told.state == TrialState.PRUNED
    assert told.intermediate_values == {1: pytest.approx(2.0)}
    assert told.value == pytest.approx(2.0)
    assert one.trials()[0].intermediate_values == {1: pytest.approx(1.0), 2: pytest.approx(0.9)}


def test_the_rungs_outlive_the_command(bench: OpenBench) -> None:
    one = bench(small_plan())
    ledger = one.ledger()
    first = ledger.next()
    assert first is not None and not ledger.report(first, 1, select_curve(1.0))
    again = one.ledger()
    assert again.next() == first
    second = again.next()
    assert second is not None and again.report(second, 1, select_curve(2.0)), "compared with the trial before the kill"


def test_an_evaluation_that_is_not_finite_is_no_value_and_no_stop(bench: OpenBench) -> None:
    one = bench(small_plan())
    ledger = one.ledger()
    trial = ledger.next()
    assert trial is not None
    assert not ledger.report(trial, 1, select_curve(math.inf))
    assert one.trials()[0].intermediate_values == {}


def test_the_last_evaluation_stops_nothing(bench: OpenBench) -> None:
    one = bench(small_plan("noise", "trial.steps=3"))
    ledger = one.ledger()
    first, second = ledger.next(), ledger.next()
    assert first is not None and second is not None
    assert not ledger.report(first, 3, select_curve(1.0))
    assert not ledger.report(second, 3, select_curve(2.0))


def test_a_killed_search_neither_repeats_nor_forgets(bench: OpenBench) -> None:
    one = bench(small_plan(count=6))
    ledger = one.ledger()
    finished = one.run(ledger, [1.4, 1.3])
    untold, running, stopped = ledger.next(), ledger.next(), ledger.next()
    assert untold is not None and running is not None and stopped is not None
    one.finish(untold, select_curve(1.2))
    assert not ledger.report(running, 1, select_curve(1.0))
    assert ledger.report(stopped, 1, select_curve(5.0))
    assert [one_.state for one_ in one.trials()[2:]] == [TrialState.RUNNING] * 3
    del ledger

    again = one.ledger()
    states = [told.state for told in one.trials()]
    assert states == [*[TrialState.COMPLETE] * 3, TrialState.RUNNING, TrialState.PRUNED]
    assert one.trials()[2].value == pytest.approx(1.2)
    assert again.next() == running, "taken up again under its own number, with its own settings"
    sixth = again.next()
    assert sixth is not None and sixth not in (*finished, untold, running, stopped)
    assert again.next() is None, "six trials in all"
    for trial in (running, sixth):
        one.finish(trial, select_curve(1.1))
        again.end(trial)
    assert [told.state for told in one.trials()].count(TrialState.COMPLETE) == 5
    assert one.ledger().next() is None


def test_a_kill_within_a_suggestion_keeps_what_was_suggested(bench: OpenBench) -> None:
    one = bench(small_plan("passing"))
    arm = one.study().ask().suggest_categorical("arm", list(one.plan.space.arms))
    assert [told.params for told in one.trials()] == [{"arm": arm}]
    trial = one.ledger().next()
    assert trial is not None and (trial.label, trial.config.arm) == (f"{arm} trial 0", arm)
    (told,) = one.trials()
    assert told.params["arm"] == arm and told.params["optimizer.peak_lr"] > 0
    assert told.user_attrs["identity"] == trial.identity


def test_a_search_that_ends_leaves_none_running(bench: OpenBench) -> None:
    one = bench(small_plan())
    ledger = one.ledger()
    lost, found = ledger.next(), ledger.next()
    assert lost is not None and found is not None
    one.finish(found, select_curve(1.0))
    ledger.close()
    assert [told.state for told in one.trials()] == [TrialState.FAIL, TrialState.COMPLETE]
    assert one.trials()[0].user_attrs[REASON] == "it did not run to its end"


def test_settings_that_were_tried_are_told_without_running_again(bench: OpenBench) -> None:
    # Nothing but the arm of tbtt, with its reset probability and way of resetting, at one of two values each.
    plan = small_plan("passing", "sweep.arms=tbtt", count=4)
    narrow = replace(
        plan,
        space=replace(
            plan.space,
            parameters=tuple(
                replace(one, choices=("row",)) if one.choices else replace(one, low=0.5, high=0.5, log=False)
                for one in plan.space.parameters
                if one.setting != "optimizer.peak_lr"
            ),
        ),
    )
    one = bench(narrow)
    ledger = one.ledger()
    (first,) = one.run(ledger, [1.25])
    assert ledger.next() is None
    told = one.trials()
    assert [each.value for each in told] == [pytest.approx(1.25)] * 4
    assert [each.user_attrs.get(SAME_AS) for each in told] == [None, "trial 0", "trial 0", "trial 0"]
    assert {each.user_attrs["identity"] for each in told} == {first.identity}


def test_twins_of_a_running_trial_wait_for_its_end(bench: OpenBench) -> None:
    plan = small_plan("noise", "sweep.arms=fitted_noise", count=3)
    narrow = replace(plan, space=replace(plan.space, parameters=(replace(plan.space.parameters[0], high=0.0),)))
    one = bench(narrow)
    ledger = one.ledger()
    trial = ledger.next()
    assert trial is not None and ledger.next() is None
    assert [each.state for each in one.trials()] == [TrialState.RUNNING] * 3
    one.fail(trial, "RuntimeError: no")
    ledger.end(trial, error=True)
    assert [each.state for each in one.trials()] == [TrialState.FAIL] * 3
    assert {each.user_attrs[REASON] for each in one.trials()} == {"RuntimeError: no"}


def test_the_control_that_was_measured_as_a_reference_is_not_run_again(bench: OpenBench) -> None:
    plan = small_plan("full", "sweep.arms=zero", count=1)
    space = replace(plan.space, parameters=())
    one = bench(replace(plan, space=space))
    zero = next(trial for trial in plan.trials if trial.arm.arm == "zero")
    one.finish(zero, select_curve(1.75))
    assert one.ledger().next() is None
    (told,) = one.trials()
    assert told.value == pytest.approx(1.75) and told.user_attrs[SAME_AS] == "zero"


def test_the_same_seed_suggests_the_same_trials_however_often_it_is_interrupted(bench: OpenBench) -> None:
    # Beyond the ten trials that the sampler draws at random.
    values = list(np.linspace(2.0, 1.0, 13))
    plan = small_plan(count=13)
    one = bench(plan, "at once")
    whole = one.run(one.ledger(), values)
    other = bench(plan, "in pieces")
    pieces = [trial for some in (values[:3], values[3:11], values[11:]) for trial in other.run(other.ledger(), some)]
    assert pieces == whole
    assert len({trial.identity for trial in whole}) == 13


def test_another_seed_suggests_other_trials(bench: OpenBench) -> None:
    one = bench(small_plan())
    first = one.ledger().next()
    other = small_plan("noise", "search.seed=1")
    second = one.ledger(other).next()
    assert first is not None and second is not None and first.identity != second.identity


def test_two_objectives_are_told_together_and_nothing_is_stopped(bench: OpenBench) -> None:
    one = bench(small_plan(objective="far_and_near"))
    ledger = one.ledger()
    trial = ledger.next()
    assert trial is not None and not ledger.report(trial, 1, select_curve(9.0))
    one.finish(trial, select_curve(1.5))
    ledger.end(trial)
    one.run(ledger, [1.4, 1.3])
    assert one.trials()[0].values == [pytest.approx(1.5), pytest.approx(1.5)]
    assert [best.number for best in one.study().best_trials] == [2]


def test_more_trials_continue_the_same_study(bench: OpenBench) -> None:
    one = bench(small_plan(count=2))
    one.run(one.ledger(), [1.4, 1.3])
    larger = replace(one.plan, count=3)
    assert larger.identity == one.plan.identity
    ledger = one.ledger(larger)
    third = ledger.next()
    assert third is not None and third.label.endswith("trial 2")
