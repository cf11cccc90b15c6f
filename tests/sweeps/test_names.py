from dataclasses import replace

import pytest

from models.settings import ModelSettings
from sweeps.names import arm_names
from sweeps.trials import Trial
from workers.intervention_settings import InterventionSettings
from workers.settings import BaseSettings, TrialConfig, TrialSettings

SETTINGS = InterventionSettings(sigma=0.05, reset_probability=0.3)


def trial(arm: str, row: str = "", steps: int = 100, size: str = "demo", base: str = "demo-mamba2") -> Trial:
    config = TrialConfig(
        arm=arm,
        intervention=SETTINGS,
        trial=TrialSettings(steps=steps),
        model=ModelSettings(size=size),
        base=BaseSettings(checkpoint=base, step=40),
    )
    return Trial(config=config, arm=row)


@pytest.mark.parametrize(
    ("arm", "varies", "label", "value"),
    [
        ("state_passing", "", "state_passing", None),
        ("state_passing", "intervention.reset_probability", "state_passing 0.3", 0.3),
        ("mixture", "intervention.reset_probability", "mixture zero+state_passing 0.3", 0.3),
        ("zero", "intervention.reset_probability", "zero", None),
        ("random_noise", "", "random_noise 0.05", None),
        ("random_noise", "intervention.sigma", "random_noise 0.05", 0.05),
        ("longer_context", "intervention.sigma", "longer_context 4", None),
        ("correlated_noise", "", "correlated_noise head", None),
        ("zero", "trial.steps", "zero 100", 100.0),
        ("base", "trial.steps", "base", None),
        ("zero", "optimizer.peak_lr", "zero 0.0003", 3e-4),
        ("base", "base.step", "base", None),
    ],
)
def test_a_name_holds_each_value_once(arm: str, varies: str, label: str, value: float | None) -> None:
    (found,) = arm_names([trial(arm)], varies=varies)
    assert (found.label, found.arm, found.value, found.group) == (label, arm, value, "")


def test_named_settings_belong_to_the_names_of_the_arms_that_use_them() -> None:
    names = arm_names([trial("zero"), trial("state_passing")], named=("intervention.parts", "intervention.passing"))
    assert [name.label for name in names] == ["zero", "state_passing recurrent in_place"]


def test_facets_make_groups_only_where_they_differ() -> None:
    one, other = trial("zero"), trial("zero", size="tiny")
    assert [name.group for name in arm_names([one, one], facets=("model.size",))] == ["", ""]
    names = arm_names([one, other], facets=("model.size", "model.architecture"))
    assert [(name.group, name.label) for name in names] == [("demo", "demo zero"), ("tiny", "tiny zero")]


def test_a_training_run_that_others_start_from_is_the_row_base() -> None:
    (found,) = arm_names([trial("zero", row="base", base="fresh")], varies="trial.steps")
    assert (found.label, found.arm, found.value) == ("base", "base", None)


def test_a_step_of_the_base_belongs_to_what_starts_from_a_trained_one() -> None:
    trained = trial("base", base="trained")
    later = replace(trained, config=replace(trained.config, base=replace(trained.config.base, step=80)))
    assert [name.label for name in arm_names([trained, later], varies="base.step")] == ["base 40", "base 80"]
