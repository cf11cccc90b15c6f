"""Every named sweep in both presets: what it lists, and that a plan of it can be shown without any file of others."""

from dataclasses import replace
from pathlib import Path

import pytest

from sweeps.catalogue import CATALOGUE, Entry
from sweeps.expected_time import expected_seconds
from sweeps.gpu_hours import evaluation_tokens, gpu_hours, tokens_per_second, training_tokens
from sweeps.plan import make_plan
from sweeps.planned import SweepPlan
from sweeps.registry import NAMES, get_sweep
from sweeps.settings import SettingError
from workers.settings import FRESH_BASE, TRAINED_BASE

MINUTES_A_SEED = 10


def plan_of(entry: Entry, preset: str = "demo", seeds: int = 1) -> SweepPlan:
    assignments = [f"sweep.stage={entry.stage}"] if entry.stage else []
    return make_plan(entry.sweep, preset, assignments, seeds, to_show=True)


def labels(sweep: str, *assignments: str, seeds: int = 1) -> list[str]:
    return [trial.label for trial in make_plan(sweep, "demo", list(assignments), seeds).trials]


def test_the_catalogue_holds_every_sweep_but_searches_and_the_recipe_of_the_bases() -> None:
    assert {entry.sweep for entry in CATALOGUE} == set(NAMES) - {"demo_base", "search"}
    staged = {entry.sweep for entry in CATALOGUE if entry.stage}
    assert staged == {name for name in NAMES if get_sweep(name).stages} == {"warmup", "context_length"}


@pytest.mark.parametrize("name", NAMES)
def test_every_sweep_says_what_it_asks_and_what_would_contradict_it(name: str) -> None:
    sweep = get_sweep(name)
    assert sweep.name == name and sweep.question.endswith("?")
    assert all(text.endswith((".", "?")) for text in (sweep.why, sweep.paper_found, sweep.contradicts))


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.title)
def test_the_demo_takes_at_most_ten_minutes_a_seed_on_two_cores(entry: Entry) -> None:
    plan = plan_of(entry)
    assert sum(trial.expected_seconds for trial in plan.trials) / 2 <= 60 * MINUTES_A_SEED


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.title)
def test_the_paper_preset_is_shown_without_its_files_and_refused_otherwise(
    entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = plan_of(entry, "paper")
    assert plan.fetches and all(trial.config.trial.device == "cuda" for trial in plan.trials)
    half_a_million = {trial.config.batch_rows * trial.config.window for trial in plan.trials}
    assert half_a_million == {2**19}
    with pytest.raises(SettingError, match="fetch|cannot be reached"):
        make_plan(entry.sweep, "paper", [f"sweep.stage={entry.stage}"] if entry.stage else [], 1)


def test_steps_of_state_passing_have_the_control_of_as_many_steps() -> None:
    assert labels("steps", "sweep.values=5,20") == ["base", "zero 5", "zero 20", "state_passing 5", "state_passing 20"]


def test_contexts_share_the_tokens_of_a_step() -> None:
    plan = make_plan("context_length", "demo", ["sweep.stage=posttrain"], 1)
    shapes = {(trial.config.window, trial.config.batch_rows) for trial in plan.trials if trial.arm.arm != "base"}
    assert shapes == {(64, 24), (128, 12), (256, 6), (512, 3)}
    assert [trial.arm.value for trial in plan.trials][1:5] == [64, 128, 256, 512]


def test_from_scratch_a_seed_is_that_of_the_initialisation_too() -> None:
    plan = make_plan("warmup", "demo", ["sweep.values=0.1"], 2)
    assert [(trial.config.base.seed, trial.config.trial.seed) for trial in plan.trials] == [(0, 0), (1, 1)]
    assert {trial.config.base.checkpoint for trial in plan.trials} == {FRESH_BASE}
    assert [trial.label for trial in plan.trials] == ["zero 0.1 seed 0", "zero 0.1 seed 1"]


def test_sizes_train_their_bases_once_and_all_seeds_start_from_them() -> None:
    plan = make_plan("model_size", "demo", ["sweep.sizes=demo-64,demo"], 2)
    bases = [trial for trial in plan.trials if trial.arm.arm == "base"]
    assert [trial.label for trial in bases] == ["demo-64 base", "demo base"]
    assert all(trial.base is None and trial.config.trial.steps == 330 for trial in bases)
    for base in bases:
        group = [trial for trial in plan.trials if trial.arm.group == base.arm.group and trial is not base]
        assert len(group) == 4 and {trial.base for trial in group} == {base.identity}
        assert {trial.config.base.checkpoint for trial in group} == {TRAINED_BASE}


def test_what_starts_from_a_trained_base_follows_its_recipe_and_nothing_else_of_it() -> None:
    def identities(*assignments: str) -> list[str]:
        plan = make_plan("model_size", "demo", ["sweep.sizes=demo-64", *assignments], 1)
        return [trial.identity for trial in plan.trials]

    usual = identities()
    assert all(a != b for a, b in zip(usual, identities("base.steps=20"), strict=True))
    later = identities("trial.steps=20")
    assert later[0] == usual[0] and later[1] != usual[1]


def test_checkpoints_along_a_training_are_kept_by_one_trial_and_named_by_their_step() -> None:
    plan = make_plan("training_tokens", "demo", ["base.steps=30", "sweep.values=10,30"], 1)
    assert [trial.label for trial in plan.trials] == [
        *("training", "base 10", "zero 10", "state_passing 10"),
        *("base 30", "zero 30", "state_passing 30"),
    ]
    assert plan.trials[0].config.trial.keep_models == (10, 30)
    assert {trial.base for trial in plan.trials[1:]} == {plan.trials[0].identity}
    assert len({trial.identity for trial in plan.trials}) == 7


def test_architectures_start_from_the_base_shipped_for_each() -> None:
    plan = make_plan("architectures", "demo", [], 1)
    found = {trial.config.model.architecture: trial.config.base.checkpoint for trial in plan.trials}
    assert found == {name: f"demo-{name}" for name in ("mamba1", "mamba2", "gla", "rwkv6")}


def test_on_the_paper_recipe_rates_follow_the_size_unless_one_is_chosen() -> None:
    plan = make_plan("model_size", "paper", [], 1, to_show=True)
    rates = {trial.config.model.size: trial.config.optimizer.peak_lr for trial in plan.trials}
    assert rates == {"130m": 3e-4, "370m": 1.5e-4, "780m": 1.25e-4, "1.3b": 1e-4}
    chosen = make_plan("model_size", "paper", ["optimizer.peak_lr=2e-4"], 1, to_show=True)
    assert {trial.config.optimizer.peak_lr for trial in chosen.trials} == {2e-4}


def test_gpu_hours_are_tokens_over_the_stated_speed() -> None:
    plan = make_plan("noise_scale", "paper", [], 1, to_show=True)
    base, zero = plan.trials[0].config, plan.trials[1].config
    # 0.3 x 312 TFLOP/s over 6 operations for each of 128,989,632 parameters
    gpu = plan.settings.gpu
    assert tokens_per_second(zero, gpu) == pytest.approx(0.3 * 312e12 / (6 * 128_989_632))
    assert training_tokens(zero) == 100 * 2**19 and training_tokens(base) == 0
    assert evaluation_tokens(zero) == (64 + 32 + 4) * 32768
    seconds = gpu_hours(zero, gpu) * 3600
    assert seconds * tokens_per_second(zero, gpu) == pytest.approx(100 * 2**19 + 100 * 32768 / 3)
    # A second forward pass in training, none in evaluation.
    again = replace(zero, trial=replace(zero.trial, activation_checkpointing=True))
    assert gpu_hours(again, gpu) * 3600 == pytest.approx(seconds + 100 * 2**19 * 2 * 128_989_632 / (0.3 * 312e12))


def test_time_grows_with_the_size_of_the_model() -> None:
    plan = make_plan("model_size", "demo", [], 1)
    small, large = (next(t for t in plan.trials if t.config.model.size == size) for size in ("demo-64", "demo-192"))
    assert expected_seconds(large.config, large.dims.parameters()) > 2 * small.expected_seconds
    assert replace(small.config, model=large.config.model) == large.config


@pytest.mark.parametrize("stage", [["sweep.stage=posttrain"], [" sweep.stage = posttrain"]])
def test_settings_and_trials_are_those_of_one_stage(stage: list[str]) -> None:
    usual = make_plan("warmup", "demo", ["sweep.stage=posttrain"], 1)
    assert make_plan("warmup", "demo", stage, 1).identity == usual.identity
    assert make_plan("warmup", "demo", ["sweep.stage=pretrain", *stage], 1).identity == usual.identity


def test_an_empty_stage_is_the_first_one() -> None:
    assert make_plan("warmup", "demo", ["sweep.stage="], 1).identity == make_plan("warmup", "demo", [], 1).identity


def test_all_sizes_start_from_trained_bases_where_that_is_asked_for() -> None:
    plan = make_plan("model_size", "demo", ["model.size=demo-64"], 1)
    trained = {trial.config.base.checkpoint for trial in plan.trials if trial.arm.arm != "base"}
    assert trained == {TRAINED_BASE}


@pytest.mark.parametrize(
    ("sweep", "assignments", "sentence"),
    [
        ("warmup", ["base.checkpoint=demo-mamba2"], "this sweep trains from scratch"),
        ("warmup", ["base.seed=4"], "leave base.seed out"),
        ("demo_base", ["base.checkpoint=trained"], "this sweep trains from scratch"),
        ("context_length", ["sweep.values=0"], "sweep.values holds 0"),
        ("noise_scale", ["sweep.values="], "sweep.values is empty"),
        ("noise_scale", ["base.step=40", "base.checkpoint=trained"], "leave it out here"),
        ("training_tokens", ["base.steps=100"], "sweep.values holds 165, but the training has steps 1 to 100"),
        ("model_size", ["base.rows=7", "trial.workers=2"], "in the training of the base"),
        ("architectures", ["base.checkpoint=demo-mamba2"], "is a mamba2, but the chosen model a mamba1"),
    ],
)
def test_settings_that_would_make_another_sweep_of_it(sweep: str, assignments: list[str], sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        make_plan(sweep, "demo", assignments, 1)


def test_on_the_paper_recipe_of_architectures_a_users_choice_stays() -> None:
    chosen = ["trial.context=1024", "trial.rows=512", "base.steps=10", "optimizer.peak_lr=2e-4"]
    plan = make_plan("architectures", "paper", chosen, 1, to_show=True)
    trained = [trial.config for trial in plan.trials if trial.arm.arm != "base"]
    assert {(one.trial.context, one.trial.rows, one.optimizer.peak_lr) for one in trained} == {(1024, 512, 2e-4)}
    assert {one.base.steps for one in trained} == {10}
    sizes = make_plan(
        "architectures", "paper", ["model.size=370m", "sweep.architectures=mamba1,mamba2"], 1, to_show=True
    )
    assert {trial.config.model.size for trial in sizes.trials} == {"370m"}
