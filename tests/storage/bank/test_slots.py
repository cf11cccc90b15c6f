from typing import Any

import numpy as np
import pytest

from storage.bank.layout import BankLayout, Bytes, Float32
from storage.bank.slots import Slots, slot_bytes
from storage.bank.wire import encoded
from storage.errors import StorageError

LAYOUT = BankLayout(rows=20, elements=3)
ROWS, ALL = np.arange(10, 14), np.arange(4)


def opened(memory: Bytes | None = None, layout: BankLayout = LAYOUT) -> Slots:
    slots = Slots(10, 14, layout, memory)
    if memory is None or not memory.any():
        slots.clear()
    return slots


def states(value: float) -> Float32:
    return np.arange(12, dtype=np.float32).reshape(4, 3) + value


def read(slots: Slots, step: int, rows: np.ndarray = ROWS) -> Float32:
    out = np.full((rows.size, 3), np.nan, np.float32)
    slots.read(step, rows, np.arange(rows.size), out)
    return out


def test_two_steps_lie_side_by_side_and_the_third_takes_the_place_of_the_first() -> None:
    slots = opened()
    for step in range(3):
        slots.write(step, ROWS, states(100 * step), ALL)
    assert np.array_equal(read(slots, 1), states(100))
    assert np.array_equal(read(slots, 2), states(200))
    with pytest.raises(StorageError, match="row 10 of step 0 can no longer be read; the bank keeps steps 1 and 2 only"):
        read(slots, 0)


def test_a_step_that_is_begun_takes_the_old_one_away_though_no_row_arrived() -> None:
    slots = opened()
    for step in range(2):
        slots.write(step, ROWS, states(step), ALL)
    slots.write(2, ROWS[:1], states(9), ALL[:1])
    with pytest.raises(StorageError, match="step 0 can no longer be read"):
        read(slots, 0, ROWS[3:])
    assert np.array_equal(read(slots, 1), states(1)), "the step before the newest is whole"


def test_writers_of_an_older_step_are_refused_and_change_nothing() -> None:
    slots = opened()
    for step in (4, 5):
        slots.write(step, ROWS, states(step), ALL)
    with pytest.raises(StorageError, match="row 12 of step 3 can no longer be written; the bank keeps steps 4 and 5"):
        slots.write(3, ROWS[2:3], states(0), ALL[:1])
    assert np.array_equal(read(slots, 5), states(5))


def test_a_reader_that_was_overtaken_while_it_copied_is_told() -> None:
    memory = np.zeros(slot_bytes(10, 14, LAYOUT), dtype=np.uint8)
    reader, writer = opened(memory), Slots(10, 14, LAYOUT, memory)
    writer.write(0, ROWS, states(0), ALL)

    class Overtaken(np.ndarray):
        """An answer whose filling gives the writer time for two more steps."""

        def reshape(self, *shape: Any, **order: Any) -> Any:
            for step in (1, 2):
                writer.write(step, ROWS, states(step), ALL)
            return np.asarray(self).reshape(*shape)

    with pytest.raises(StorageError, match="step 0 can no longer be read; the bank keeps steps 1 and 2"):
        reader.read(0, ROWS, ALL, np.zeros((4, 3), np.float32).view(Overtaken))


def test_two_views_of_one_memory_see_each_others_rows_in_any_order() -> None:
    memory = np.zeros(slot_bytes(10, 14, LAYOUT), dtype=np.uint8)
    first, second = opened(memory), Slots(10, 14, LAYOUT, memory)
    first.write(0, np.array([13, 10]), states(0), np.array([2, 0]))
    second.write(0, np.array([11, 12]), states(0), np.array([1, 3]))
    assert np.array_equal(read(second, 0, np.array([10, 11, 12, 13])), states(0)[[0, 1, 3, 2]])
    assert np.array_equal(read(first, 0, np.array([12, 10, 12])), states(0)[[3, 0, 3]])


def test_bad_rows_are_zeroed_in_place_and_named() -> None:
    slots, given = opened(), states(0)
    given[1, 2], given[3, 0] = np.nan, -np.inf
    slots.write(0, ROWS[::-1].copy(), given, ALL)
    assert slots.zero_bad(0, np.array([10, 12, 13])).tolist() == [10, 12]
    expected = states(0)[::-1].copy()
    expected[[0, 2]] = 0.0
    assert np.array_equal(read(slots, 0), expected)


def test_rows_that_a_newer_step_took_the_place_of_are_left_alone() -> None:
    slots = opened()
    slots.write(0, ROWS, states(np.nan), ALL)
    slots.write(2, ROWS, states(np.nan), ALL)
    assert slots.zero_bad(0, ROWS).size == 0
    assert np.isnan(slots.block(2, ROWS)).all()


def test_a_row_written_again_is_never_bad_in_between() -> None:
    slots = opened()
    slots.write(0, ROWS, states(0), ALL)
    assert slots.write(0, ROWS[1:3], np.full((2, 3), np.nan, np.float32), ALL[:2]).tolist() == [11, 12]
    assert np.array_equal(read(slots, 0)[1:3], np.zeros((2, 3)))


def test_bf16_takes_half_the_memory() -> None:
    half = BankLayout(rows=20, elements=3, wire_dtype="bf16")
    assert slot_bytes(10, 14, LAYOUT) - slot_bytes(10, 14, half) == 2 * 4 * 3 * 2
    slots = opened(layout=half)
    slots.write(0, ROWS, states(0.001), ALL)
    expected = states(0)
    expected[0, 0] = 0.00099945068359375
    assert np.array_equal(read(slots, 0), expected)


@pytest.mark.parametrize("wire_dtype", ["fp32", "bf16"])
def test_a_block_that_travelled_is_never_bad_in_the_slots(wire_dtype: str) -> None:
    layout = BankLayout(rows=20, elements=3, wire_dtype=wire_dtype)
    slots, given = opened(layout=layout), states(0)
    given[1, 2], given[3, 0] = np.nan, np.inf
    block = encoded(given, layout)
    block.flags.writeable = False  # as Ray hands it over
    assert slots.write_block(0, ROWS[::-1].copy(), block).tolist() == [12, 10]
    expected = states(0)[::-1].copy()
    expected[[0, 2]] = 0.0
    assert np.array_equal(read(slots, 0), expected), "nobody looked at them afterwards"
