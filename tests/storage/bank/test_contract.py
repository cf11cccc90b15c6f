import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage.bank.contract import BankTimeoutError, StateBank, sample_rows
from storage.bank.in_process import InProcessBank
from storage.bank.layout import BankLayout, Float32
from storage.bank.moments import row_moments
from storage.errors import StorageError

ALL = np.arange(7)


def states(step: int, rows: int = 7, elements: int = 6) -> Float32:
    return np.random.default_rng(step).standard_normal((rows, elements), dtype=np.float32)


class TestEveryBank:
    def test_step_zero_starts_from_zeros(self, bank: StateBank) -> None:
        assert np.array_equal(bank.withdraw(0, [3, 1]), np.zeros((2, 6), np.float32))

    def test_withdraw_gives_what_was_deposited_one_step_before(self, bank: StateBank) -> None:
        bank.deposit(0, ALL, states(0))
        bank.deposit(1, ALL, states(1))
        assert np.array_equal(bank.withdraw(1, ALL), states(0))
        assert np.array_equal(bank.withdraw(2, ALL), states(1))

    def test_rows_come_in_the_order_asked_for(self, bank: StateBank) -> None:
        bank.deposit(0, [6, 0, 3], states(0)[[6, 0, 3]])
        bank.deposit(0, [5, 4, 2, 1], states(0)[[5, 4, 2, 1]])
        wanted = [4, 6, 0, 1, 6]
        assert np.array_equal(bank.withdraw(1, wanted), states(0)[wanted])

    def test_the_depositor_may_overwrite_its_buffer_at_once(self, bank: StateBank) -> None:
        buffer = states(0)
        bank.deposit(0, ALL, buffer)
        buffer.fill(-1.0)
        assert np.array_equal(bank.withdraw(1, ALL), states(0))

    def test_withdrawn_states_belong_to_the_caller(self, bank: StateBank) -> None:
        bank.deposit(0, ALL, states(0))
        bank.withdraw(1, ALL).fill(-1.0)
        assert np.array_equal(bank.withdraw(1, ALL), states(0))

    def test_withdraw_fills_the_given_buffer(self, bank: StateBank) -> None:
        bank.deposit(0, ALL, states(0))
        out = np.full((2, 6), np.nan, np.float32)
        assert bank.withdraw(1, [5, 2], out) is out
        assert np.array_equal(out, states(0)[[5, 2]])

    def test_old_rows_do_not_shine_through_when_buffers_are_reused(self, bank: StateBank) -> None:
        for step in range(6):
            bank.deposit(step, ALL, states(step))
            assert np.array_equal(bank.withdraw(step + 1, ALL), states(step))
            if step:
                assert np.array_equal(bank.withdraw(step, ALL), states(step - 1))

    def test_a_repeated_deposit_is_harmless(self, bank: StateBank) -> None:
        for _ in range(3):
            bank.deposit(0, ALL, states(0))
            bank.deposit(0, [2, 3], states(0)[2:4])
        assert np.array_equal(bank.withdraw(1, ALL), states(0))
        assert bank.counters() == {"deposits": 7, "zeroed_rows": 0, "bytes": 7 * 6 * 4}

    def test_a_hurried_writer_loses_no_row_and_zeroes_no_newer_one(self, bank: StateBank) -> None:
        bad = states(0)
        bad[2:5] = np.nan
        for step in range(40):
            bank.deposit(step, ALL, bad if step % 3 == 0 else states(step))
        assert np.array_equal(bank.withdraw(39, ALL), states(38))
        assert np.flatnonzero(bank.withdraw(40, ALL).any(axis=1)).tolist() == [0, 1, 5, 6]
        assert bank.counters()["zeroed_rows"] == 14 * 3

    def test_a_late_deposit_for_the_older_kept_step_is_taken(self, bank: StateBank) -> None:
        bank.deposit(0, ALL[:5], states(0)[:5])
        bank.deposit(1, ALL, states(1))
        bank.deposit(0, ALL[5:], states(0)[5:])
        assert np.array_equal(bank.withdraw(1, ALL), states(0))

    def test_a_deposit_older_than_the_kept_steps_names_step_and_row(self, bank: StateBank) -> None:
        bank.deposit(5, ALL, states(5))
        bank.flush()
        with pytest.raises(StorageError, match=r"row 4 of step 3 .* keeps steps 4 and 5"):
            bank.deposit(3, [4], states(3)[[4]])
            bank.flush()

    def test_a_withdrawal_older_than_the_kept_steps_names_step_and_row(self, bank: StateBank) -> None:
        bank.deposit(5, ALL, states(5))
        bank.flush()
        with pytest.raises(StorageError, match=r"row 4 of step 3 .* keeps steps 4 and 5"):
            bank.withdraw(4, [4])

    def test_a_missing_row_times_out_with_step_and_row(self, bank: StateBank) -> None:
        bank.deposit(0, [0, 1, 2, 3, 4, 5], states(0)[:6])
        bank.timeout_s = 0.2
        with pytest.raises(BankTimeoutError, match=r"waited 0.2 s for the state of step 0, row 6"):
            bank.withdraw(1, ALL)

    def test_a_withdrawal_waits_for_a_late_deposit(self, bank: StateBank) -> None:
        bank.deposit(0, ALL[:4], states(0)[:4])
        late = threading.Timer(0.3, bank.deposit, (0, ALL[4:], states(0)[4:]))
        late.start()
        assert np.array_equal(bank.withdraw(1, ALL), states(0))
        late.join()

    def test_prefetch_before_the_deposit_gives_the_same_states(self, bank: StateBank) -> None:
        bank.prefetch(1, ALL)
        bank.deposit(0, ALL, states(0))
        bank.prefetch(1, [2, 4])
        assert np.array_equal(bank.withdraw(1, [2, 4]), states(0)[[2, 4]])
        assert np.array_equal(bank.withdraw(1, ALL), states(0))

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_a_row_that_is_not_finite_is_zeroed_and_counted(self, bank: StateBank, bad: float) -> None:
        poisoned = states(0)
        poisoned[3, 5] = bad
        expected = states(0)
        expected[3] = 0.0
        bank.deposit(0, ALL, poisoned)
        assert np.array_equal(bank.withdraw(1, ALL), expected)
        assert bank.counters()["zeroed_rows"] == 1
        assert np.array_equal(poisoned[3, 5], bad, equal_nan=True), "the caller's array is left alone"

    def test_a_repeated_row_that_is_not_finite_never_shows(self, bank: StateBank) -> None:
        bank.deposit(0, ALL, states(0))
        bank.deposit(0, ALL, states(0))
        poisoned = states(0)
        poisoned[3, 5] = np.nan
        bank.deposit(0, [3, 4], poisoned[3:5])
        found = bank.withdraw(1, ALL)  # whether the shard knows of the repeat or not
        assert np.isfinite(found).all()
        assert np.array_equal(np.delete(found, 3, axis=0), np.delete(states(0), 3, axis=0))

    def test_one_changed_row_changes_that_row_alone(self, bank: StateBank) -> None:
        changed = states(0)
        changed[2] += 1.0
        bank.deposit(0, ALL, changed)
        assert np.flatnonzero((bank.withdraw(1, ALL) != states(0)).any(axis=1)).tolist() == [2]

    def test_a_sample_is_keyed_by_seed_and_step_alone(self, bank: StateBank) -> None:
        bank.deposit(0, ALL, states(0))
        bank.deposit(1, ALL, states(1))
        rows, drawn = bank.sample(2, 4, seed=11)
        assert rows.tolist() == sample_rows(7, 2, 4, seed=11).tolist()
        assert np.array_equal(drawn, states(1)[rows])

    def test_moments_are_those_of_all_rows(self, bank: StateBank) -> None:
        partials = row_moments(states(0), bank.layout)
        for rows in ([6, 0], [3, 1, 2], [5, 4]):
            bank.merge_moments(0, rows, partials[rows])
        got = bank.moments(0)
        first = states(0)[:, :4].astype(np.float64)
        assert got.names == ("layer0", "layer1")
        assert got.count.tolist() == [28.0, 14.0]
        assert got.mean[0] == pytest.approx(first.mean(), rel=1e-14)
        assert got.std[0] == pytest.approx(first.std(), rel=1e-14)

    def test_missing_moments_time_out_with_step_and_row(self, bank: StateBank) -> None:
        bank.merge_moments(0, ALL[:-1], row_moments(states(0)[:-1], bank.layout))
        bank.timeout_s = 0.2
        with pytest.raises(BankTimeoutError, match=r"moments of step 0, row 6"):
            bank.moments(0)

    def test_a_snapshot_brings_back_states_moments_and_counters(self, bank: StateBank, tmp_path: Path) -> None:
        for step in (3, 4):
            bank.deposit(step, ALL, states(step))
            bank.merge_moments(step, ALL, row_moments(states(step), bank.layout))
        counters, moments = bank.counters(), bank.moments(4)
        bank.snapshot(tmp_path)
        bank.deposit(5, ALL, states(5))
        bank.restore(tmp_path)
        assert bank.counters() == counters
        assert np.array_equal(bank.withdraw(5, ALL), states(4))
        assert np.array_equal(bank.moments(4).squares, moments.squares)

    def test_an_empty_bank_survives_its_snapshot(self, bank: StateBank, tmp_path: Path) -> None:
        bank.snapshot(tmp_path)
        bank.restore(tmp_path)
        bank.deposit(0, ALL, states(0))
        assert np.array_equal(bank.withdraw(1, ALL), states(0))

    def test_clear_starts_again_from_step_zero(self, bank: StateBank) -> None:
        bank.deposit(9, ALL, states(9))
        bank.clear()
        assert bank.counters() == {"deposits": 0, "zeroed_rows": 0, "bytes": 0}
        bank.deposit(0, ALL, states(0))
        assert np.array_equal(bank.withdraw(1, ALL), states(0))

    @pytest.mark.parametrize(
        ("step", "rows", "array", "message"),
        [
            (-1, [0], states(0, 1), "step -1"),
            (0, [7], states(0, 1), "row 7 at step 0 is"),
            (0, [-1], states(0, 1), "row -1 at step 0 is"),
            (0, [1, 1], states(0, 2), "hold a row twice"),
            (0, [0.5], states(0, 1), "list of"),
            (0, [0], states(0, 2), r"give float32 of \(1, 6\)"),
            (0, [0], states(0, 1).astype(np.float64), "are float64"),
        ],
    )
    def test_wrong_deposits_are_refused_in_one_sentence(
        self, bank: StateBank, step: int, rows: list[int], array: Float32, message: str
    ) -> None:
        with pytest.raises(StorageError, match=message):
            bank.deposit(step, rows, array)

    def test_a_buffer_that_does_not_fit_is_refused(self, bank: StateBank) -> None:
        with pytest.raises(StorageError, match=r"contiguous float32 array of \(2, 6\)"):
            bank.withdraw(0, [0, 1], np.zeros((6, 2), np.float32).T)

    def test_moments_that_are_not_finite_are_refused(self, bank: StateBank) -> None:
        with pytest.raises(StorageError, match="not finite"):
            bank.merge_moments(0, [0], np.full((1, 2, 3), np.nan))


@given(data=st.data())
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_partition_order_and_number_of_shards_gives_the_same_bits(data: st.DataObject, bank: StateBank) -> None:
    reference = InProcessBank(bank.layout)
    bank.clear()
    order = data.draw(st.permutations(range(7)))
    cuts = sorted(data.draw(st.sets(st.integers(1, 6))))
    wanted = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=9))
    partials = row_moments(states(0), reference.layout)
    reference.deposit(0, ALL, states(0))
    reference.merge_moments(0, ALL, partials)
    for part in np.split(np.array(order), cuts):
        bank.deposit(0, part, states(0)[part])
        bank.merge_moments(0, part, partials[part])
    assert np.array_equal(bank.withdraw(1, wanted), reference.withdraw(1, wanted))
    assert bank.moments(0).total.tobytes() == reference.moments(0).total.tobytes()
    assert bank.moments(0).squares.tobytes() == reference.moments(0).squares.tobytes()
    assert np.array_equal(bank.sample(1, 5, 3)[1], reference.sample(1, 5, 3)[1])


@pytest.mark.parametrize("shards", [0, pytest.param(1, marks=pytest.mark.ray)])
def test_bf16_on_the_wire_rounds_to_nearest(open_bank: Callable[[BankLayout, int], StateBank], shards: int) -> None:
    bank = open_bank(BankLayout(rows=2, elements=3, wire_dtype="bf16"), shards)
    given = np.array([[1.0, 1.00390625, 1.01171875], [-2.0, 3.3e38, 3.4e38]], np.float32)
    bank.deposit(0, [0, 1], given)  # 3.4e38 would round to infinity
    # 1 + 1/256 and 1 + 3/256 lie half-way between bf16 neighbours; ties go to the even one.
    assert bank.withdraw(1, [0, 1]).tolist() == [[1.0, 1.0, 1.015625], [0.0, 0.0, 0.0]]
    assert bank.counters() == {"deposits": 2, "zeroed_rows": 1, "bytes": 12}
    bank.deposit(1, [0, 1], np.full((2, 3), np.nan, np.float32))
    assert not bank.withdraw(2, [0, 1]).any()


@pytest.mark.parametrize("shards", [0, pytest.param(2, marks=pytest.mark.ray)])
def test_blocks_above_the_inline_size_survive_whole_and_in_part(
    open_bank: Callable[[BankLayout, int], StateBank], shards: int
) -> None:
    elements = 40_000
    bank = open_bank(BankLayout(rows=6, elements=elements), shards)
    given = states(1, 6, elements)
    bank.deposit(0, [5, 4, 3, 2, 1, 0], given)
    assert np.array_equal(bank.withdraw(1, np.arange(6)), given[::-1])
    assert np.array_equal(bank.withdraw(1, [1, 4]), given[[4, 1]])


def test_a_sample_of_all_rows_is_a_permutation_and_changes_with_step_and_seed() -> None:
    drawn = [tuple(sample_rows(50, step, 50, seed).tolist()) for step, seed in ((1, 0), (2, 0), (1, 1))]
    assert all(sorted(rows) == list(range(50)) for rows in drawn)
    assert len(set(drawn)) == 3


def test_a_sample_draws_every_row_equally_often() -> None:
    counts = np.bincount(np.concatenate([sample_rows(10, step, 3, 0) for step in range(2000)]), minlength=10)
    assert np.abs(counts - 600).max() < 4 * np.sqrt(2000 * 0.3 * 0.7)


@pytest.mark.parametrize("count", [0, 8])
def test_a_sample_larger_than_the_bank_or_empty_is_refused(count: int) -> None:
    with pytest.raises(StorageError, match="from 1 to 7"):
        sample_rows(7, 1, count, 0)
