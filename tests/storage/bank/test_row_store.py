import threading
import time

import numpy as np
import pytest

from storage.bank.contract import BankTimeoutError
from storage.bank.layout import BankLayout, Float32
from storage.bank.row_store import RowStore
from storage.bank.slots import Slots
from storage.errors import StorageError

LAYOUT = BankLayout(rows=20, elements=3)
NONE = np.arange(0)
ROWS = np.arange(10, 14)


def store(groups: int = 0) -> RowStore:
    return RowStore(Slots(10, 14, LAYOUT), LAYOUT.row_bytes, groups)


def block(*values: float) -> Float32:
    return np.repeat(np.array(values, np.float32)[:, None], 3, axis=1)


def test_rows_written_into_the_slots_count_only_when_they_are_reported() -> None:
    kept = store()
    kept.slots.write(0, ROWS, block(1, 2, 3, 4), np.arange(4))
    with pytest.raises(BankTimeoutError, match="step 0, row 10"):
        kept.await_states(0, ROWS, 0.0)
    kept.put_states(0, ROWS[:2], NONE)
    with pytest.raises(BankTimeoutError, match="step 0, row 12"):
        kept.await_states(0, ROWS, 0.0)
    kept.put_states(0, ROWS[2:], NONE)
    assert kept.states(0, 0.0)[:, 0].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert kept.counters == {"deposits": 4, "zeroed_rows": 0, "bytes": 48}


def test_a_block_that_travelled_is_put_into_the_slots() -> None:
    kept = store()
    kept.put_states(0, np.array([13, 10]), NONE, block(4, 1))
    assert kept.slots.read_block(0, np.array([10, 13]))[:, 0].tolist() == [1.0, 4.0]


@pytest.mark.parametrize("travelled", [True, False])
def test_a_row_that_is_not_finite_is_zeroed_before_it_counts_and_counted_once(travelled: bool) -> None:
    kept, given = store(), block(1, np.nan, 3, np.inf)
    for _ in range(2):
        if travelled:
            kept.put_states(0, ROWS, NONE, given)
        else:
            kept.slots.write(0, ROWS, given, np.arange(4))
            kept.put_states(0, ROWS, NONE)
    assert kept.states(0, 0.0)[:, 0].tolist() == [1.0, 0.0, 3.0, 0.0]
    assert kept.counters["zeroed_rows"] == 2


def test_the_two_newest_steps_are_kept_and_older_ones_are_refused() -> None:
    kept = store()
    for step in range(4):
        kept.put_states(step, ROWS, NONE, block(*[step] * 4))
    assert [kept.states(step, 0.0)[0, 0] for step in (2, 3)] == [2.0, 3.0]
    with pytest.raises(StorageError, match="row 10 of step 1 can no longer be read; the bank keeps steps 2 and 3"):
        kept.await_states(1, ROWS, 0.0)
    with pytest.raises(StorageError, match="row 11 of step 1 can no longer be written"):
        kept.put_states(1, ROWS[1:2], NONE, block(1))


def test_a_jump_over_steps_retires_all_that_is_too_old() -> None:
    kept = store(groups=1)
    kept.put_states(0, ROWS, NONE, block(*[0] * 4))
    kept.put_moments(9, ROWS, np.zeros((4, 1, 3)))
    assert kept.holds(0) == (False, False)
    assert kept.holds(9) == (False, True)
    with pytest.raises(StorageError, match="keeps steps 8 and 9"):
        kept.await_states(0, ROWS, 0.0)


def test_a_read_wakes_when_the_last_row_comes() -> None:
    kept = store()
    kept.put_states(0, ROWS[:3], NONE, block(1, 2, 3))
    threading.Timer(0.1, kept.put_states, (0, ROWS[3:], NONE, block(4))).start()
    began = time.monotonic()
    kept.await_states(0, ROWS, 30.0)
    assert time.monotonic() - began < 15


def test_after_clear_nothing_shines_through() -> None:
    kept = store()
    kept.put_states(0, ROWS, NONE, block(1, 2, 3, 4))
    kept.clear()
    with pytest.raises(BankTimeoutError):
        kept.await_states(0, ROWS, 0.0)
    with pytest.raises(StorageError, match="can no longer be read"):
        kept.slots.read_block(0, ROWS)
