"""State passing, shuffled entries, TBTT and mixture: which state a row starts from."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.workers.intervention_makers import EVERY_PART, ROWS, VECTOR, build, drawn, final_state, open_bank

ALL = np.arange(ROWS)
WHOLE = [list(range(ROWS))]


def passed(step: int) -> np.ndarray:
    return VECTOR.pack(final_state(step, ALL)).numpy()


def test_a_row_starts_from_its_own_final_state_of_the_step_before() -> None:
    states = drawn(build("state_passing", reset_probability=0.0), "state_passing", WHOLE, range(4))
    assert (states[0] == 0).all()
    for step in range(1, 4):
        assert np.array_equal(states[step], passed(step - 1))


def test_permuted_rows_are_a_new_permutation_in_every_step() -> None:
    states = drawn(
        build("state_passing", reset_probability=0.0, passing="permuted"), "state_passing", WHOLE, range(1 + 20)
    )
    orders = []
    for step in range(1, 21):
        equal = (states[step][:, None, :] == passed(step - 1)[None]).all(-1)
        assert (equal.sum(0) == 1).all() and (equal.sum(1) == 1).all()
        orders.append(tuple(equal.argmax(1)))
    assert len(set(orders)) > 15
    moved = np.mean([row != source for order in orders for row, source in enumerate(order)])
    # A random permutation moves a row with probability 5/6; 120 draws.
    assert abs(moved - 5 / 6) < 5 * (5 / 36 / 120) ** 0.5


@pytest.mark.parametrize("reset_by", ["row", "batch"])
def test_resets_happen_with_the_probability_given_row_by_row_or_for_the_whole_batch(reset_by: str) -> None:
    states = drawn(build("state_passing", reset_by=reset_by, reset_probability=0.3), "state_passing", WHOLE, range(101))
    zero = (states[1:] == 0).all(axis=2)
    draws = zero.size if reset_by == "row" else len(zero)
    assert abs(zero.mean() - 0.3) < 5 * (0.3 * 0.7 / draws) ** 0.5
    together = (zero.all(axis=1) | ~zero.any(axis=1)).all()
    assert together == (reset_by == "batch")


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_reset_probabilities_zero_and_one_are_certain(probability: float) -> None:
    states = drawn(build("state_passing", reset_probability=probability), "state_passing", WHOLE, range(4))[1:]
    assert (states == 0).all() == (probability == 1.0)


@pytest.mark.parametrize("passing", ["in_place", "permuted"])
@pytest.mark.parametrize("wire_dtype", ["fp32", "bf16"])
def test_resident_rows_give_the_states_that_the_bank_would(passing: str, wire_dtype: str) -> None:
    settings: dict[str, Any] = {"passing": passing, "reset_probability": 0.2}
    everything = drawn(
        build("state_passing", bank=open_bank("state_passing", wire_dtype), **settings),
        "state_passing",
        WHOLE,
        range(4),
    )
    bank = open_bank("state_passing", wire_dtype)
    workers = [build("state_passing", bank=bank, resident=own, **settings) for own in (range(0, 2), range(2, 6))]
    out = np.zeros_like(everything)
    for step in range(4):
        for worker, rows in zip(workers, ([0, 1], [2, 3, 4, 5]), strict=True):
            out[step, rows] = VECTOR.pack(worker.initial_state(step, np.array(rows)) or []).numpy()
        for worker, rows in zip(workers, ([0, 1], [2, 3, 4, 5]), strict=True):
            worker.observe(step, np.array(rows), final_state(step, rows))
    assert np.array_equal(everything, out)
    # Rows that no other worker asks for never reach the bank.
    assert (bank.counters()["deposits"] == 0) == (passing == "in_place")


def test_shuffled_entries_keep_every_heads_entries_and_move_nearly_all() -> None:
    states = drawn(build("shuffled_entries", reset_probability=0.0), "shuffled_entries", WHOLE, range(2))
    for _, start, stop in VECTOR.groups():
        before, after = passed(0)[:, start:stop], states[1][:, start:stop]
        assert np.array_equal(np.sort(before, axis=1), np.sort(after, axis=1))
        assert (before == after).mean() < 0.02
    # Each row has a permutation of its own.
    ranks = [np.argsort(np.argsort(states[1][row, :1024])) for row in ALL]
    permutations = [np.argsort(passed(0)[row, :1024])[ranks[row]] for row in ALL]
    assert len({permutation.tobytes() for permutation in permutations}) == ROWS


def test_tbtt_carries_every_part_and_resets_where_a_document_begins() -> None:
    def begins(step: int, rows: np.ndarray) -> np.ndarray:
        return (rows == 2) & (step == 1)

    for document_end, reset in (("reset", [2]), ("carry", [])):
        intervention = build("tbtt", reset_probability=0.0, document_end=document_end, document_starts=begins)
        states = drawn(intervention, "tbtt", WHOLE, range(3))
        whole = EVERY_PART.pack(final_state(0, ALL)).numpy()
        whole[reset] = 0.0
        assert np.array_equal(states[1], whole)
        assert np.array_equal(states[2], EVERY_PART.pack(final_state(1, ALL)).numpy())


def test_a_mixture_takes_each_row_from_one_of_its_arms_as_often_as_it_says() -> None:
    chosen: dict[str, Any] = {"mixture": ("random_noise", "state_passing"), "mixture_probability": 0.7, "sigma": 0.5}
    mixed = drawn(build("mixture", reset_probability=0.0, **chosen), "mixture", WHOLE, range(101))
    noise = drawn(build("random_noise", sigma=0.5), "random_noise", WHOLE, range(101))
    is_noise = (mixed[1:] == noise[1:]).all(axis=2)
    for step in range(100):
        assert np.array_equal(mixed[step + 1][~is_noise[step]], passed(step)[~is_noise[step]])
    assert abs(is_noise.mean() - 0.7) < 5 * (0.7 * 0.3 / is_noise.size) ** 0.5


def test_mixing_with_zero_is_resetting() -> None:
    states = drawn(build("mixture", reset_probability=0.0, mixture_probability=1.0), "mixture", WHOLE, range(3))
    assert (states == 0).all()


def test_the_bank_may_be_told_twice_by_two_arms_of_a_mixture() -> None:
    chosen: dict[str, Any] = {"mixture": ("state_passing", "shuffled_entries"), "reset_probability": 0.0}
    mixed = drawn(build("mixture", **chosen), "mixture", WHOLE, range(2))[1]
    assert np.array_equal(np.sort(mixed[:, :1024]), np.sort(passed(0)[:, :1024]))
    assert not torch.equal(torch.from_numpy(mixed), torch.from_numpy(passed(0)))
