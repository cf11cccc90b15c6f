import subprocess
import sys
from typing import Any

import pytest

from storage.settings import BankSettings
from workers.arms import ARMS
from workers.bank_plan import EVERYTHING_LIMIT, BankPlan, bank_mode, plan_bank, state_parts
from workers.intervention_settings import InterventionSettings
from workers.settings import TrialConfig, TrialSettings

ROW = 2 * 16 * 16 * 64 * 4
"""Bytes of the demo model's recurrent state: 2 layers, 16 heads, 16 channels, 64 columns, fp32."""
CONV = 2 * (256 + 2 * 64) * 3 * 4
"""Bytes of its convolutions' last inputs: 2 layers, 384 channels, 3 positions."""
ROWS = 48


def plan(arm: str, **settings: Any) -> BankPlan:
    found = plan_bank(config(arm, **settings))
    assert found is not None
    return found


def config(arm: str, *, workers: int = 1, micro_rows: int = 0, **settings: Any) -> TrialConfig:
    bank = {name: settings.pop(name) for name in ("shards", "mode", "wire_dtype") if name in settings}
    return TrialConfig(
        arm=arm,
        trial=TrialSettings(rows=ROWS, workers=workers, micro_rows=micro_rows),
        bank=BankSettings(**bank),
        intervention=InterventionSettings(**settings),
    )


@pytest.mark.parametrize("arm", ["base", "zero", "random_noise", "longer_context"])
def test_arms_without_a_bank_need_none(arm: str) -> None:
    assert plan_bank(config(arm)) is None


def test_passed_states_cross_once_a_step_and_are_kept_for_two() -> None:
    found = plan("state_passing")
    assert (found.row_bytes, found.step_bytes, found.shard_bytes) == (ROW, ROWS * ROW, 2 * ROWS * ROW)
    assert found.held_bytes == found.shard_bytes + 3 * ROWS * ROW, "and three buffers of the worker"


def test_bf16_halves_what_the_bank_holds() -> None:
    assert plan("state_passing", wire_dtype="bf16").bank_bytes == plan("state_passing").bank_bytes // 2


def test_tbtt_carries_every_part_of_the_state() -> None:
    assert state_parts(config("tbtt")) == ("recurrent", "conv")
    assert plan("tbtt").row_bytes == ROW + CONV == plan("state_passing", parts=("recurrent", "conv")).row_bytes


def test_moments_are_three_sums_in_float64_for_each_row_layer_and_head() -> None:
    found = plan("fitted_noise")
    assert (found.step_bytes, found.shard_bytes) == (ROWS * 32 * 24, 2 * ROWS * 32 * 24)
    # The convolution has no heads: one group for each layer more.
    assert plan("fitted_noise", parts=("recurrent", "conv")).step_bytes == ROWS * 34 * 24


@pytest.mark.parametrize("arm", ["reservoir", "correlated_noise"])
def test_a_reservoir_is_bounded_by_its_capacity_and_copied_to_every_worker(arm: str) -> None:
    found = plan(arm, capacity=10, workers=2)
    assert found.shards == 2 and found.step_bytes == 10 * ROW
    assert found.shard_bytes == 20 * ROW
    assert found.held_bytes == 2 * 20 * ROW + 2 * 3 * 10 * ROW


def test_a_mixture_needs_what_its_arms_need_together() -> None:
    assert plan("mixture", mixture=("zero", "state_passing")) == plan("state_passing")
    both = plan("mixture", mixture=("fitted_noise", "state_passing"))
    assert both.bank_bytes == plan("fitted_noise").bank_bytes + plan("state_passing").bank_bytes
    assert plan_bank(config("mixture", mixture=("zero", "random_noise"))) is None


@pytest.mark.parametrize(("workers", "shards", "expected"), [(1, 0, 1), (4, 0, 4), (4, 3, 3)])
def test_every_worker_has_a_shard_unless_told_otherwise(workers: int, shards: int, expected: int) -> None:
    found = plan("state_passing", workers=workers, shards=shards)
    assert found.shards == expected
    assert found.bank_bytes == 2 * ROWS * ROW


def test_shards_of_unequal_size_are_counted_by_the_largest() -> None:
    assert plan("state_passing", shards=5).shard_bytes == 2 * 10 * ROW


def test_small_states_go_through_the_bank_and_large_ones_stay() -> None:
    assert bank_mode(config("state_passing"), EVERYTHING_LIMIT) == "everything"
    assert bank_mode(config("state_passing"), EVERYTHING_LIMIT + 1) == "resident"
    assert bank_mode(config("state_passing", mode="resident"), 1) == "resident"
    assert bank_mode(config("state_passing", mode="everything"), 2 * EVERYTHING_LIMIT) == "everything"


def test_resident_rows_leave_their_worker_only_when_another_one_asks() -> None:
    stay = plan("state_passing", mode="resident", workers=2)
    cross = plan("state_passing", mode="resident", workers=2, passing="permuted")
    alone = plan("state_passing", mode="resident", passing="permuted")
    assert stay.step_bytes == alone.step_bytes == 0 and cross.step_bytes == ROWS * ROW
    assert stay.bank_bytes == cross.bank_bytes == 2 * ROWS * ROW, "snapshots leave the states of two steps there"
    assert stay.worker_bytes == 3 * ROWS // 2 * ROW, "two generations and the copy for a snapshot"


def test_micro_batches_make_the_buffers_smaller() -> None:
    assert plan("state_passing", micro_rows=8).worker_bytes == 3 * 8 * ROW


def test_every_arm_that_fills_a_bank_has_a_plan() -> None:
    assert {arm for arm in ARMS if plan_bank(config(arm))} == {arm for arm in ARMS if config(arm).bank_content}


def test_planning_imports_no_torch() -> None:
    code = "import sys, workers.bank_plan; print('torch' in sys.modules, 'ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
