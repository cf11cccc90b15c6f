import pytest

from workers.schedule import learning_rate
from workers.settings import OptimizerSettings, TrialConfig, trial_identity

SETTINGS = OptimizerSettings(peak_lr=1e-3, min_lr=1e-4, warmup_share=0.1)


def test_warm_up_is_linear_and_moves_from_the_first_step() -> None:
    assert [learning_rate(step, 100, SETTINGS) for step in (0, 4, 9)] == pytest.approx([1e-4, 5e-4, 1e-3])


def test_the_last_step_runs_at_the_lowest_rate() -> None:
    assert learning_rate(99, 100, SETTINGS) == pytest.approx(1e-4)


def test_half_way_through_the_cosine_lies_half_way_between() -> None:
    settings = OptimizerSettings(peak_lr=1e-3, min_lr=1e-4, warmup_share=0.0)
    assert learning_rate(50, 101, settings) == pytest.approx(5.5e-4)


def test_constant_schedule_stays_at_the_peak() -> None:
    settings = OptimizerSettings(peak_lr=1e-3, schedule="constant")
    assert learning_rate(99, 100, settings) == 1e-3


def test_one_step_has_a_rate() -> None:
    assert learning_rate(0, 1, SETTINGS) == pytest.approx(1e-3)


def wsd(**changes: float) -> OptimizerSettings:
    return OptimizerSettings(**{"peak_lr": 1e-3, "min_lr": 1e-4, "schedule": "wsd", **changes})  # type: ignore[arg-type]


def test_wsd_warms_up_stays_and_decays_over_its_last_share() -> None:
    rates = [learning_rate(step, 100, wsd(warmup_share=0.1)) for step in range(100)]
    assert rates[:10] == pytest.approx([1e-4 * (step + 1) for step in range(10)])
    assert rates[10:80] == [1e-3] * 70
    # Twenty equal steps down to the lowest rate.
    assert rates[80:] == pytest.approx([1e-3 - 0.9e-3 * (step + 1) / 20 for step in range(20)])
    assert rates[-1] == pytest.approx(1e-4)


def test_before_its_decay_wsd_does_not_depend_on_where_the_trial_would_end() -> None:
    settings = wsd(warmup_share=0.0)
    assert [learning_rate(step, 50, settings) for step in range(40)] == [
        learning_rate(step, 500, settings) for step in range(40)
    ]


def test_wsd_without_decay_stays_and_with_nothing_else_falls_all_the_way() -> None:
    assert learning_rate(99, 100, wsd(decay_share=0.0)) == 1e-3
    assert learning_rate(0, 10, wsd(warmup_share=0.01, decay_share=0.99)) == pytest.approx(1e-3 - 0.09e-3)


def test_warm_up_and_decay_must_fit_into_one_trial() -> None:
    with pytest.raises(ValueError, match=r"optimizer.decay_share is 0.6; write at most what .* leaves, which is 0.5"):
        wsd(warmup_share=0.5, decay_share=0.6)
    with pytest.raises(ValueError, match="optimizer.schedule is 'linear'"):
        OptimizerSettings(schedule="linear")


def test_only_wsd_has_its_decay_in_the_identity() -> None:
    def identity(schedule: str, share: float) -> str:
        optimizer = OptimizerSettings(schedule=schedule, decay_share=share)
        return trial_identity(TrialConfig(arm="zero", optimizer=optimizer), "base", "data")

    assert identity("cosine", 0.2) == identity("cosine", 0.3)
    assert identity("wsd", 0.2) != identity("wsd", 0.3)
    assert identity("wsd", 0.2) != identity("cosine", 0.2)
