"""Spaces: whatever they suggest is a trial that can be planned, and the dry run knows them without Optuna."""

import subprocess
import sys

import optuna
import pytest

from sweeps.search.plan import make_search_plan
from sweeps.search.spaces import SPACES, configure, make_space, rounded
from sweeps.settings import SettingError
from tests.sweeps.search.searches import SMALL, small_plan
from workers.settings import TrialConfig


@pytest.mark.parametrize("space", SPACES)
def test_every_suggestion_is_a_valid_trial_of_its_own_arm(space: str) -> None:
    plan = small_plan(space)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=3))
    used: dict[str, set[str]] = {}
    for number in range(150):
        suggestion = plan.space.suggest(study.ask())
        trial = plan.planned(number, suggestion)
        assert TrialConfig.from_dict(trial.config.to_dict()) == trial.config
        assert trial.config.arm == suggestion["arm"]
        assert trial.config.batch_rows * trial.config.window == 24 * 64, "equal tokens in every step"
        assert 0 < trial.config.optimizer.min_lr <= trial.config.optimizer.peak_lr
        used.setdefault(trial.config.arm, set()).update(suggestion.keys() - {"arm"})
    assert set(used) == set(plan.space.arms)
    for arm, names in used.items():
        assert names == {one.setting for one in plan.space.of_arm(arm)}


def test_full_searches_every_setting_that_the_project_names() -> None:
    space = small_plan("full", "sweep.sizes=demo,demo-64").space
    assert {one.setting for one in space.parameters} == {
        *("intervention.sigma", "intervention.beta", "intervention.reset_probability"),
        *("optimizer.warmup_share", "optimizer.peak_lr", "trial.context", "model.size"),
    }
    assert space.arms == ("zero", "random_noise", "fitted_noise", "state_passing", "tbtt")


def test_sizes_are_those_that_were_named_and_each_starts_from_its_own_base() -> None:
    assert "model.size" not in {one.setting for one in small_plan("full").space.parameters}
    plan = small_plan("full", "sweep.sizes=demo,demo-64")
    assert plan.planned(0, {"arm": "zero", "model.size": "demo-64"}).dims.d_model == 64
    plan = make_search_plan("full", "far", 3, "demo", ["sweep.sizes=demo,demo-64"])
    references = {(trial.arm.group, trial.arm.arm): trial.identity for trial in plan.trials}
    assert list(references) == [(size, arm) for size in ("demo", "demo-64") for arm in ("base", "zero")]
    for size, base in (("demo", None), ("demo-64", references["demo-64", "base"])):
        found = plan.planned(7, {"arm": "zero", "model.size": size, "optimizer.peak_lr": 1e-3})
        assert (found.base, found.arm.group, found.label) == (base, size, f"{size} zero trial 7")


def test_a_base_that_is_trained_first_is_part_of_what_a_trial_is() -> None:
    def identity(*assignments: str) -> str:
        plan = make_search_plan("noise", "far", 3, "demo", ["base.checkpoint=trained", *assignments])
        return plan.planned(0, {"arm": "random_noise", "intervention.sigma": 0.1}).identity

    assert identity() != identity("base.steps=20") != identity("base.steps=20", "base.seed=1")


def test_settings_of_one_arm_are_asked_of_that_arm_only() -> None:
    space = small_plan("full").space
    assert {one.setting for one in space.of_arm("random_noise")} - {one.setting for one in space.of_arm("zero")} == {
        "intervention.sigma"
    }
    assert "intervention.beta" not in {one.setting for one in space.of_arm("tbtt")}


def test_numbers_are_what_a_table_can_write() -> None:
    plan = small_plan("passing")
    suggestion = plan.space.suggest(optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0)).ask())
    assert suggestion["optimizer.peak_lr"] == float(f"{suggestion['optimizer.peak_lr']:.4g}")
    assert rounded(0.0123456) == 0.01235


def test_the_lowest_rate_follows_the_peak() -> None:
    plan = small_plan("passing")
    config = configure(plan.settings, {"arm": "tbtt", "optimizer.peak_lr": 3e-3})
    assert config.optimizer.min_lr == pytest.approx(1.5e-4), "a twentieth, as in the settings"


def test_rows_follow_the_context() -> None:
    plan = small_plan("full", "trial.micro_rows=8")
    config = configure(plan.settings, {"arm": "zero", "trial.context": 128})
    assert (config.trial.context, config.trial.rows, config.trial.micro_rows) == (128, 12, 4)


def test_the_warm_up_leaves_room_for_the_decay() -> None:
    space = small_plan("full", "optimizer.decay_share=0.7").space
    (share,) = (one for one in space.parameters if one.setting == "optimizer.warmup_share")
    assert share.high == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("nois", "far"), "there is no space 'nois'; did you mean 'noise'"),
        (("noise", "fa"), "there is no objective 'fa'; did you mean 'far'"),
        (
            ("noise", "far", "sweep.arms=tbtt"),
            "sweep.arms may choose from random_noise, fitted_noise in the space noise",
        ),
        (("noise", "far", "intervention.sigma=1"), "intervention.sigma is what this sweep gives its trials itself"),
        (("noise", "far", "eval.length=64"), "do not reach past the training length 64; raise eval.length"),
        (("full", "far", "search.contexts=48,96"), "no bin that ends at position"),
        (("full", "far", "search.contexts=100"), "search.contexts holds 100, which does not divide the 1536 tokens"),
        (("noise", "far", "search.reduction=1"), "search.reduction is 1; write 0, or at least 2"),
    ],
)
def test_what_cannot_be_searched_is_one_sentence(flags: tuple[str, ...], sentence: str) -> None:
    space, objective, *assignments = flags
    with pytest.raises(SettingError, match=sentence):
        make_search_plan(space, objective, 3, "demo", [*SMALL, *assignments])


def test_other_sweeps_have_no_search_settings() -> None:
    from sweeps.plan import make_plan

    with pytest.raises(SettingError, match=r"search.\* is set, but noise_scale is no search"):
        make_plan("noise_scale", "demo", ["base.checkpoint=fresh", "search.seed=1"], 1)


def test_the_identity_knows_space_objective_and_settings_but_not_the_number_of_trials() -> None:
    first = small_plan()
    assert small_plan(count=9).identity == first.identity
    others = [
        small_plan("full"),
        small_plan(objective="horizon"),
        small_plan("noise", "search.seed=1"),
        small_plan("noise", "eval.every=2"),
        small_plan("noise", "trial.steps=10"),
        # Used by the arms of the space, not by the references.
        small_plan("noise", "intervention.parts=recurrent,conv"),
    ]
    assert len({first.identity, *(other.identity for other in others)}) == 7


def test_early_stops_need_one_objective_and_evaluations() -> None:
    assert small_plan().stops_early
    for plan in (
        small_plan(objective="far_and_near"),
        small_plan("noise", "eval.every=0"),
        small_plan("noise", "search.reduction=0"),
    ):
        assert not plan.stops_early


def test_a_space_is_made_without_the_heavy_libraries() -> None:
    code = (
        "import sys; from sweeps.search.plan import make_search_plan; make_search_plan('full', 'far', 3, 'demo', []); "
        "print([name for name in ('torch', 'ray', 'mlflow', 'pandas', 'optuna', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_space_keeps_to_the_arms_that_were_chosen() -> None:
    space = make_space("full", small_plan("full", "sweep.arms=zero,tbtt").settings)
    assert space.arms == ("zero", "tbtt")
    assert "intervention.sigma" not in {one.setting for one in space.parameters}


@pytest.mark.parametrize(
    ("space", "assignments", "sentence"),
    [
        ("noise", ["sweep.sizes=demo-64"], "sweep.sizes is set, but the space noise does not choose it"),
        ("passing", ["search.contexts=64"], "search.contexts is set, but the space passing does not choose it"),
        ("full", ["search.contexts=64,64"], "search.contexts has a value twice"),
        ("full", ["optimizer.peak_lr=0", "optimizer.min_lr=0"], "a search chooses rates around it"),
    ],
)
def test_settings_that_a_space_has_no_use_for(space: str, assignments: list[str], sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        make_search_plan(space, "far", 3, "demo", assignments)


def test_half_of_a_context_of_one_is_no_context() -> None:
    with pytest.raises(SettingError, match="write powers of two as search.contexts and as trial.context"):
        make_search_plan("full", "far", 3, "demo", ["trial.context=1"])
