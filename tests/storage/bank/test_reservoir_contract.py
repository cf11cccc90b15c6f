"""The reservoir and the digest of every implementation of the bank. LAYOUT of conftest: 7 rows, 5 entries."""

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage.bank.contract import BankTimeoutError, StateBank
from storage.bank.in_process import InProcessBank
from storage.bank.layout import BankLayout, Float32
from storage.bank.moments import row_moments
from storage.bank.reservoir import Reservoir, reservoir_keys
from storage.errors import StorageError

ALL = np.arange(7)
SEED = 4


def states(step: int, rows: np.ndarray = ALL) -> Float32:
    return np.random.default_rng(step).standard_normal((7, 6), dtype=np.float32)[rows]


def expected(steps: int, without: tuple[tuple[int, int], ...] = ()) -> list[tuple[int, int]]:
    keyed = [(int(key), step, row) for step in range(steps) for row, key in enumerate(reservoir_keys(SEED, step, ALL))]
    return [(step, row) for _, step, row in sorted(keyed) if (step, row) not in without][:5]


def entries(kept: Reservoir) -> list[tuple[int, int]]:
    return list(zip(kept.steps.tolist(), kept.rows.tolist(), strict=True))


def offer_steps(bank: StateBank, first: int, last: int) -> None:
    for step in range(first, last):
        bank.offer(step, ALL, states(step), SEED)


def test_at_step_zero_the_reservoir_is_empty(bank: StateBank) -> None:
    assert len(bank.reservoir(0)) == 0
    assert bank.reservoir_states([], []).shape == (0, 6)


@given(data=st.data(), steps=st.integers(1, 5))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_history_gives_the_smallest_keys_and_their_states(data: st.DataObject, steps: int, bank: StateBank) -> None:
    bank.clear()
    for step in range(steps):
        order = np.array(data.draw(st.permutations(range(7))))
        cuts = sorted(data.draw(st.sets(st.integers(1, 6), max_size=2)))
        repeat = data.draw(st.booleans())
        for part in np.split(order, cuts) + ([order[:2]] if repeat else []):
            bank.offer(step, part, states(step, part), SEED)
        if data.draw(st.booleans()):  # a read tells the client a limit that keeps later states from travelling
            assert entries(bank.reservoir(step + 1)) == expected(step + 1)
    found = bank.reservoir(steps)
    assert entries(found) == expected(steps)
    mixed = data.draw(st.permutations(range(len(found))))
    drawn = bank.reservoir_states(found.steps[mixed], found.rows[mixed])
    assert np.array_equal(drawn, [states(step)[row] for step, row in np.array(entries(found))[mixed]])


def test_offers_of_a_step_leave_the_reservoir_as_of_that_step_alone(bank: StateBank) -> None:
    offer_steps(bank, 0, 2)
    before = bank.reservoir(2)
    bank.offer(2, ALL[:6], states(2, ALL[:6]), SEED)
    bank.flush()
    assert entries(bank.reservoir(2)) == entries(before) == expected(2)
    bank.offer(2, ALL[6:], states(2, ALL[6:]), SEED)
    assert entries(bank.reservoir(2)) == expected(2)
    step, row = expected(2)[4]
    assert np.array_equal(bank.reservoir_states([step], [row])[0], states(step)[row])
    assert entries(bank.reservoir(3)) == expected(3)


def test_a_reservoir_that_offers_have_left_behind_is_refused(bank: StateBank) -> None:
    offer_steps(bank, 0, 3)
    bank.flush()
    with pytest.raises(StorageError, match="as of step 1 can no longer be read"):
        bank.reservoir(1)


def test_an_offer_older_than_the_two_newest_steps_names_step_and_row(bank: StateBank) -> None:
    bank.offer(5, ALL, states(5), SEED)
    bank.flush()
    with pytest.raises(StorageError, match="row 4 of step 3 can no longer be offered"):
        bank.offer(3, [4], states(3, ALL[4:5]), SEED)
        bank.flush()


def test_a_row_that_was_not_offered_times_out_with_step_and_row(bank: StateBank) -> None:
    offer_steps(bank, 0, 1)
    bank.offer(1, ALL[:6], states(1, ALL[:6]), SEED)
    bank.timeout_s = 0.2
    with pytest.raises(BankTimeoutError, match="waited 0.2 s for the offer of step 1, row 6"):
        bank.reservoir(2)


def test_a_read_waits_for_a_late_offer(bank: StateBank) -> None:
    bank.offer(0, ALL[:4], states(0, ALL[:4]), SEED)
    late = threading.Timer(0.3, bank.offer, (0, ALL[4:], states(0, ALL[4:]), SEED))
    late.start()
    assert entries(bank.reservoir(1)) == expected(1)
    late.join()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_is_not_finite_counts_as_offered_and_never_enters(bank: StateBank, bad: float) -> None:
    first = expected(1)[0]
    poisoned = states(0)
    poisoned[first[1], 2] = bad
    bank.offer(0, ALL, poisoned, SEED)
    assert entries(bank.reservoir(1)) == expected(1, without=(first,))
    assert not np.isfinite(poisoned[first[1], 2]), "the caller's array is left alone"


def test_the_offerer_may_overwrite_its_buffer_at_once(bank: StateBank) -> None:
    buffer = states(0)
    bank.offer(0, ALL, buffer, SEED)
    buffer.fill(-1.0)
    found = bank.reservoir(1)
    assert np.array_equal(bank.reservoir_states(found.steps, found.rows), states(0)[found.rows])


def test_states_go_into_the_given_buffer(bank: StateBank) -> None:
    offer_steps(bank, 0, 1)
    found, out = bank.reservoir(1), np.full((2, 6), np.nan, np.float32)
    assert bank.reservoir_states(found.steps[3:], found.rows[3:], out) is out
    assert np.array_equal(out, states(0)[found.rows[3:]])


def test_an_entry_that_is_not_in_the_reservoir_is_named(bank: StateBank) -> None:
    offer_steps(bank, 0, 3)
    step, row = next((step, row) for step in range(2) for row in range(7) if (step, row) not in expected(3))
    bank.reservoir(3)
    with pytest.raises(StorageError, match=f"row {row} of step {step} is not in the reservoir"):
        bank.reservoir_states([step], [row])


def test_another_seed_is_refused(bank: StateBank) -> None:
    offer_steps(bank, 0, 1)
    with pytest.raises(StorageError, match="offered with seed 5, but this reservoir is drawn with seed 4"):
        bank.offer(1, ALL, states(1), 5)
        bank.flush()


def test_a_resumed_bank_goes_on_as_if_uninterrupted(bank: StateBank, tmp_path: Path) -> None:
    offer_steps(bank, 0, 3)
    bank.snapshot(tmp_path)
    offer_steps(bank, 3, 6)
    whole, digest = bank.reservoir(6), bank.digest()
    bank.restore(tmp_path)
    assert entries(bank.reservoir(3)) == expected(3)
    offer_steps(bank, 2, 6)  # the step before the snapshot once more: harmless
    assert entries(bank.reservoir(6)) == entries(whole) == expected(6)
    assert bank.digest() == digest


def test_a_client_forgets_what_it_knew_of_later_steps(bank: StateBank) -> None:
    offer_steps(bank, 0, 6)
    bank.reservoir(6)
    bank.clear()
    offer_steps(bank, 0, 1)
    assert entries(bank.reservoir(1)) == expected(1)


def test_clear_forgets_the_reservoir(bank: StateBank, tmp_path: Path) -> None:
    offer_steps(bank, 0, 2)
    bank.clear()
    bank.snapshot(tmp_path)
    assert not list(tmp_path.glob("reservoir-*"))
    bank.offer(0, ALL, states(0), seed=9)
    assert set(bank.reservoir(1).steps.tolist()) == {0}


def test_a_bank_without_reservoir_refuses_offers_and_reads() -> None:
    bank = InProcessBank(BankLayout(rows=7, elements=6))
    with pytest.raises(StorageError, match=r"keeps no reservoir; give its number of entries in BankLayout\(capacity"):
        bank.offer(0, ALL, states(0), SEED)
    with pytest.raises(StorageError, match="keeps no reservoir"):
        bank.reservoir(0)
    with pytest.raises(StorageError, match="capacity is -1"):
        BankLayout(rows=7, elements=6, capacity=-1)


def fill(bank: StateBank, order: np.ndarray, cuts: list[int]) -> None:
    for step in range(3):
        for part in np.split(order, cuts):
            bank.deposit(step, part, states(step, part))
            bank.merge_moments(step, part, row_moments(states(step, part), bank.layout))
            bank.offer(step, part, states(step, part), SEED)


def test_the_digest_does_not_depend_on_shards_or_arrival(bank: StateBank) -> None:
    reference = InProcessBank(bank.layout)
    fill(reference, ALL, [])
    fill(bank, ALL[::-1], [3, 5])
    assert bank.digest() == reference.digest()


def test_the_digest_shows_every_change(bank: StateBank) -> None:
    fill(bank, ALL, [])
    digests = [bank.digest()]
    changed = states(2)
    changed[6, 5] += 1e-6
    bank.deposit(2, [6], changed[6:])
    digests.append(bank.digest())
    bank.merge_moments(2, [6], row_moments(changed[6:], bank.layout))
    digests.append(bank.digest())
    step, row = expected(3)[0]
    if step == 2:
        bank.offer(2, [row], states(2, ALL[row : row + 1]) + 1.0, SEED)
        digests.append(bank.digest())
    bank.deposit(3, ALL, states(2))
    bank.merge_moments(3, ALL, row_moments(states(2), bank.layout))
    bank.offer(3, ALL, states(2), SEED)
    digests.append(bank.digest())
    assert len(set(digests)) == len(digests)


def test_an_empty_bank_has_a_digest(bank: StateBank) -> None:
    assert bank.digest() == InProcessBank(bank.layout).digest()


def test_bf16_rounds_the_states_of_the_reservoir() -> None:
    bank = InProcessBank(BankLayout(rows=2, elements=1, wire_dtype="bf16", capacity=2))
    bank.offer(0, [0, 1], np.array([[1.01171875], [3.4e38]], np.float32), SEED)
    found = bank.reservoir(1)
    assert found.rows.tolist() == [0], "3.4e38 would round to infinity"
    assert bank.reservoir_states(found.steps, found.rows).tolist() == [[1.015625]]
