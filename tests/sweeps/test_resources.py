import pytest

from sweeps.machine import Machine
from sweeps.plan import make_plan
from sweeps.planned import SweepPlan
from sweeps.resources import bank_needs, check_resources, size
from sweeps.settings import SettingError

GIB = 2**30
ROW = 131_072
"""Bytes of a row of the demo model."""
PLENTY = Machine(cpus=2, gpus=0, memory=64 * GIB)


def plan(*assignments: str, arms: str = "state_passing,reservoir") -> SweepPlan:
    settings = ["base.checkpoint=fresh", "trial.rows=24", "intervention.capacity=8", f"sweep.arms={arms}"]
    return make_plan("interventions", "demo", [*settings, *assignments], 1)


def test_more_cpus_than_there_are_is_said_at_once() -> None:
    with pytest.raises(SettingError, match="asks for 8 CPUs .* but this machine has 2"):
        check_resources(plan("trial.workers=4", "trial.threads=2"), PLENTY)


def test_the_most_demanding_trials_are_taken_to_run_together() -> None:
    needs = bank_needs(plan(), PLENTY)
    # Two generations and three buffers of 24 rows; at most 16 rows in the reservoir and three copies of 8.
    assert needs.memory == (5 * 24 + 16 + 3 * 8) * ROW
    assert needs.largest is not None and needs.largest.label == "state_passing"


def test_one_trial_at_once_needs_only_its_own() -> None:
    alone = bank_needs(plan("trial.threads=2"), PLENTY)
    assert (alone.at_once, alone.memory) == (1, 5 * 24 * ROW)


def test_on_gpus_the_workers_share_lies_in_their_memory() -> None:
    machine = Machine(cpus=8, gpus=1, memory=GIB)
    needs = bank_needs(plan(), machine)
    assert (needs.at_once, needs.memory) == (1, 2 * 24 * ROW)
    assert bank_needs(plan("trial.device=cpu"), machine).at_once == 8


def test_exactly_enough_memory_is_enough() -> None:
    needs = bank_needs(plan(), PLENTY)
    check_resources(plan(), Machine(cpus=2, gpus=0, memory=needs.memory))


def test_a_byte_too_little_names_the_number_and_what_to_change() -> None:
    needs = bank_needs(plan(), PLENTY)
    with pytest.raises(SettingError) as caught:
        check_resources(plan(), Machine(cpus=2, gpus=0, memory=needs.memory - 1))
    for part in (
        "banks, 2 at once, hold up to 20.0 MiB, but this machine has 20.0 MiB to spare",
        "that of state_passing, with 128 KiB a row",
        "trial.rows (now 24)",
        "trial.threads",
        "bank.wire_dtype=bf16",
    ):
        assert part in str(caught.value)


def test_a_reservoir_that_does_not_fit_names_its_capacity() -> None:
    with pytest.raises(SettingError, match=r"lower intervention.capacity \(now 8\) or trial.rows"):
        check_resources(plan(arms="reservoir"), Machine(cpus=2, gpus=0, memory=1))


def test_arms_without_a_bank_need_no_memory_for_one() -> None:
    check_resources(plan(arms="random_noise"), Machine(cpus=2, gpus=0, memory=0))


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (131_072, "128 KiB"), (3 * 2**19, "1.5 MiB")]
)
def test_sizes_are_short(number: int, text: str) -> None:
    assert size(number) == text
