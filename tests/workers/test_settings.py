import dataclasses
import json
import math
from typing import Any

import pytest

from models.settings import ModelSettings
from workers.arms import ARMS
from workers.settings import (
    BaseSettings,
    DataSettings,
    EvalSettings,
    InterventionSettings,
    OptimizerSettings,
    TrialConfig,
    TrialSettings,
    trial_identity,
)


@pytest.mark.parametrize("sigma", [-0.1, math.nan, math.inf])
def test_sigma_that_is_negative_or_no_number_is_refused(sigma: float) -> None:
    with pytest.raises(ValueError, match="intervention.sigma"):
        InterventionSettings(sigma=sigma)


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_reset_probability_accepts_its_bounds(probability: float) -> None:
    assert InterventionSettings(reset_probability=probability).reset_probability == probability


@pytest.mark.parametrize("probability", [-0.01, 1.01])
def test_reset_probability_refuses_what_lies_outside(probability: float) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        InterventionSettings(reset_probability=probability)


def test_rows_must_divide_among_workers_and_micro_batches() -> None:
    def config(arm: str = "zero", factor: int = 4, **trial: Any) -> TrialConfig:
        return TrialConfig(arm=arm, trial=TrialSettings(**trial), intervention=InterventionSettings(factor=factor))

    assert config(rows=48, workers=2, micro_rows=8).micro_rows == 8
    assert config(rows=48, workers=2).micro_rows == 24
    with pytest.raises(ValueError, match="trial.rows is 48; write a multiple of trial.workers"):
        config(rows=48, workers=5)
    with pytest.raises(ValueError, match="divisor of the 24 rows"):
        config(rows=48, workers=2, micro_rows=7)
    with pytest.raises(ValueError, match="multiple of intervention.factor, which is 5"):
        config("longer_context", factor=5, rows=48)


def test_longer_windows_have_fewer_rows_and_equal_tokens() -> None:
    config = TrialConfig(arm="longer_context", trial=TrialSettings(rows=48, context=64, micro_rows=8, workers=2))
    assert (config.window, config.batch_rows, config.micro_rows) == (256, 12, 2)
    other = TrialConfig(arm="zero", trial=config.trial)
    assert (other.window, other.batch_rows, other.micro_rows) == (64, 48, 8)
    assert config.window * config.batch_rows == other.window * other.batch_rows


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("reset_by", "sequence"),
        ("passing", "shuffled"),
        ("document_end", "keep"),
        ("scope", "model"),
        ("factor", 1),
        ("capacity", 1),
        ("beta", 1.5),
        ("mixture_probability", -0.1),
        ("mixture", ("zero", "tbtt")),
        ("mixture", ("zero", "zero")),
        ("mixture", ("zero",)),
    ],
)
def test_a_senseless_intervention_is_refused_by_name(setting: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"intervention.{setting} is .*; write "):
        InterventionSettings(**{setting: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arm", "content"),
    [
        ("zero", set()),
        ("random_noise", set()),
        ("fitted_noise", {"moments"}),
        ("tbtt", {"states"}),
        ("correlated_noise", {"reservoir"}),
    ],
)
def test_what_goes_through_the_bank_depends_on_the_arm(arm: str, content: set[str]) -> None:
    assert TrialConfig(arm=arm).bank_content == content


def test_a_mixture_puts_into_the_bank_what_its_arms_do() -> None:
    mixed = InterventionSettings(mixture=("fitted_noise", "reservoir"))
    assert TrialConfig(arm="mixture", intervention=mixed).bank_content == {"moments", "reservoir"}


def test_min_lr_above_peak_is_refused() -> None:
    with pytest.raises(ValueError, match="optimizer.min_lr"):
        OptimizerSettings(peak_lr=1e-4, min_lr=1e-3)


def test_what_would_round_gradients_to_bf16_is_refused() -> None:
    with pytest.raises(ValueError, match="trial.zero_stage is 0; write at least 1 for several micro-batches in bf16"):
        TrialConfig(arm="zero", trial=TrialSettings(precision="bf16", zero_stage=0, micro_rows=6))
    for architecture, stage, micro_rows in (("gla", 3, 6), ("mamba2", 3, 6), ("mamba2", 0, 48), ("mamba2", 0, 0)):
        trial = TrialSettings(precision="bf16", zero_stage=stage, micro_rows=micro_rows)
        TrialConfig(arm="zero", model=ModelSettings(architecture=architecture), trial=trial)


def test_unknown_arm_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'state_passing'"):
        TrialConfig(arm="state_pasing")


def test_config_survives_json() -> None:
    config = TrialConfig(arm="zero", data=DataSettings(files=("a.txt", "b.txt")))
    assert TrialConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_identity_leaves_out_hardware_and_paths() -> None:
    config = TrialConfig(arm="zero")
    elsewhere = TrialConfig(
        arm="zero",
        trial=TrialSettings(
            workers=2,
            threads=2,
            device="cpu",
            micro_rows=4,
            checkpoint_every=7,
            zero_stage=2,
            max_skipped=1,
            activation_checkpointing=True,
        ),
        data=DataSettings(files=("other/place.txt",), tokenizer="other/place/tokenizer.json"),
        base=BaseSettings(checkpoint="other/folder", seed=3),
    )
    assert trial_identity(config, "base", "data") == trial_identity(elsewhere, "base", "data")


def identity_of(kernel: str, device: str) -> str:
    config = TrialConfig(arm="zero", model=ModelSettings(kernel=kernel), trial=TrialSettings(device=device))
    return trial_identity(config, "base", "data")


def test_identity_has_the_kernel_that_runs_however_it_was_asked_for() -> None:
    assert identity_of("auto", "cuda") == identity_of("fused", "cuda")
    assert identity_of("auto", "cpu") == identity_of("auto", "auto") == identity_of("chunked", "cuda")
    assert len({identity_of(kernel, "cuda") for kernel in ("fused", "chunked", "naive")}) == 3


def test_a_fused_kernel_and_a_cpu_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="model.kernel = 'fused' runs on GPUs, and trial.device is 'cpu'"):
        TrialConfig(arm="zero", model=ModelSettings(kernel="fused"), trial=TrialSettings(device="cpu"))


def test_evaluations_give_fused_kernels_at_most_16k_tokens_a_call() -> None:
    gpu, long = TrialSettings(device="cuda"), EvalSettings(chunk=16385)
    TrialConfig(arm="zero", trial=gpu, eval=EvalSettings(chunk=16384))
    TrialConfig(arm="zero", eval=long)
    with pytest.raises(ValueError, match="eval.chunk is 16385; write at most 16384 with fused kernels"):
        TrialConfig(arm="zero", trial=gpu, eval=long)


@pytest.mark.parametrize(
    "other",
    [
        TrialConfig(arm="state_passing"),
        TrialConfig(arm="zero", trial=TrialSettings(seed=1)),
        TrialConfig(arm="zero", trial=TrialSettings(precision="bf16")),
        TrialConfig(arm="zero", optimizer=OptimizerSettings(peak_lr=1e-3)),
    ],
)
def test_identity_covers_all_that_changes_numbers(other: TrialConfig) -> None:
    assert trial_identity(TrialConfig(arm="zero"), "base", "data") != trial_identity(other, "base", "data")


@pytest.mark.parametrize("arm", [arm.name for arm in ARMS.values()])
def test_identity_covers_the_intervention_settings_that_the_arm_uses_and_no_others(arm: str) -> None:
    others: dict[str, Any] = {
        "sigma": 0.7,
        "beta": 0.7,
        "reset_probability": 0.7,
        "reset_by": "batch",
        "passing": "permuted",
        "parts": ("recurrent", "conv"),
        "document_end": "carry",
        "factor": 8,
        "scope": "all",
        "capacity": 77,
        "mixture": ("zero", "fitted_noise"),
        "mixture_probability": 0.7,
    }
    assert set(others) == {one.name for one in dataclasses.fields(InterventionSettings)}
    config = TrialConfig(arm=arm)
    used = {name for each in (ARMS[arm], *config.drawing_arms) for name in each.settings}
    for name, value in others.items():
        changed = TrialConfig(arm=arm, intervention=InterventionSettings(**{name: value}))
        moved = trial_identity(changed, "base", "data") != trial_identity(config, "base", "data")
        assert moved == (name in used), name


def test_identity_covers_the_content_of_base_and_data() -> None:
    config = TrialConfig(arm="zero")
    assert len({trial_identity(config, base, data) for base in "ab" for data in "cd"}) == 4


def test_base_seed_counts_only_for_a_fresh_base() -> None:
    fresh = [TrialConfig(arm="zero", base=BaseSettings(checkpoint="fresh", seed=seed)) for seed in (0, 1)]
    assert trial_identity(fresh[0], "", "data") != trial_identity(fresh[1], "", "data")
