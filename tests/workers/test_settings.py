import json
import math

import pytest

from workers.settings import (
    BaseSettings,
    DataSettings,
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
    assert TrialSettings(rows=48, workers=2, micro_rows=8).worker_micro_rows == 8
    assert TrialSettings(rows=48, workers=2).worker_micro_rows == 24
    with pytest.raises(ValueError, match="trial.rows is 48; write a multiple of trial.workers"):
        TrialSettings(rows=48, workers=5)
    with pytest.raises(ValueError, match="divisor of the 24 rows"):
        TrialSettings(rows=48, workers=2, micro_rows=7)


def test_min_lr_above_peak_is_refused() -> None:
    with pytest.raises(ValueError, match="optimizer.min_lr"):
        OptimizerSettings(peak_lr=1e-4, min_lr=1e-3)


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
        trial=TrialSettings(workers=2, threads=2, device="cpu", micro_rows=4, checkpoint_every=7, zero_stage=2),
        data=DataSettings(files=("other/place.txt",), tokenizer="other/place/tokenizer.json"),
        base=BaseSettings(checkpoint="other/folder", seed=3),
    )
    assert trial_identity(config, "base", "data") == trial_identity(elsewhere, "base", "data")


@pytest.mark.parametrize(
    "other",
    [
        TrialConfig(arm="state_passing"),
        TrialConfig(arm="zero", trial=TrialSettings(seed=1)),
        TrialConfig(arm="zero", trial=TrialSettings(precision="bf16")),
        TrialConfig(arm="zero", intervention=InterventionSettings(sigma=0.5)),
        TrialConfig(arm="zero", optimizer=OptimizerSettings(peak_lr=1e-3)),
    ],
)
def test_identity_covers_all_that_changes_numbers(other: TrialConfig) -> None:
    assert trial_identity(TrialConfig(arm="zero"), "base", "data") != trial_identity(other, "base", "data")


def test_identity_covers_the_content_of_base_and_data() -> None:
    config = TrialConfig(arm="zero")
    assert len({trial_identity(config, base, data) for base in "ab" for data in "cd"}) == 4


def test_base_seed_counts_only_for_a_fresh_base() -> None:
    fresh = [TrialConfig(arm="zero", base=BaseSettings(checkpoint="fresh", seed=seed)) for seed in (0, 1)]
    assert trial_identity(fresh[0], "", "data") != trial_identity(fresh[1], "", "data")
