import pytest

from sweeps.plan import make_plan
from sweeps.settings import SettingError
from workers.arms import ARMS

SMALL = ["base.checkpoint=fresh"]


def labels(*assignments: str, seeds: int = 1) -> list[str]:
    return [trial.label for trial in make_plan("interventions", "demo", [*SMALL, *assignments], seeds).trials]


def test_every_arm_there_is_runs() -> None:
    assert labels() == [
        "base",
        "zero",
        "random_noise 0.1",
        "fitted_noise",
        "state_passing",
        "tbtt",
        "longer_context 4",
        "reservoir",
        "correlated_noise head",
        "correlated_noise layer",
        "correlated_noise all",
        "shuffled_entries",
        "mixture zero+state_passing",
    ]
    plan = make_plan("interventions", "demo", SMALL, 1)
    assert {trial.config.arm for trial in plan.trials} == set(ARMS)


def test_names_follow_the_settings_that_always_belong_to_them() -> None:
    found = labels(
        "intervention.sigma=0.05", "intervention.factor=2", "intervention.mixture=fitted_noise,state_passing"
    )
    assert {"random_noise 0.05", "longer_context 2", "mixture fitted_noise+state_passing"} <= set(found)


def test_chosen_arms_run_beside_the_base_and_the_control() -> None:
    assert labels("sweep.arms=tbtt,reservoir", seeds=2) == [
        "base",
        *("zero seed 0", "tbtt seed 0", "reservoir seed 0"),
        *("zero seed 1", "tbtt seed 1", "reservoir seed 1"),
    ]


def test_every_arm_sees_as_many_tokens() -> None:
    trials = make_plan("interventions", "demo", SMALL, 1).trials
    assert {trial.config.batch_rows * trial.config.window for trial in trials} == {24 * 64}
    times = {trial.label: trial.expected_seconds for trial in trials}
    assert times["longer_context 4"] == times["zero"] > times["base"]


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("sweep.arms=tbt", "sweep.arms: there is no arm 'tbt'; did you mean 'tbtt'"),
        ("sweep.arms=tbtt,tbtt", "sweep.arms has a value twice: tbtt, tbtt"),
        ("sweep.values=0.1", "has no choice of values; leave it out"),
        ("intervention.scope=all", "gives its trials itself; leave it out"),
        ("intervention.factor=5", "trial.rows is 24; write a multiple of intervention.factor, which is 5"),
        ("intervention.mixture=zero,tbtt", "intervention.mixture"),
    ],
)
def test_mistakes_are_found_before_anything_starts(assignment: str, sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        labels(assignment)


def test_a_sweep_without_a_choice_of_arms_says_so() -> None:
    with pytest.raises(SettingError, match="the sweep noise_scale has no choice of arms"):
        make_plan("noise_scale", "demo", [*SMALL, "sweep.arms=zero"], 1)
