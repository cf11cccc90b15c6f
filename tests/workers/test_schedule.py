import pytest

from workers.schedule import learning_rate
from workers.settings import OptimizerSettings

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
