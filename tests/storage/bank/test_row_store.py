import numpy as np

from storage.bank.row_store import RowStore

GOOD = np.zeros(2, dtype=bool)


def block(value: int) -> np.ndarray:
    return np.full((2, 3), value, np.float32)


def test_only_two_generations_hold_memory() -> None:
    store = RowStore(10, 14, groups=0)
    blocks = [block(step) for step in range(4)]
    retired = [store.put_states(step, np.array([10, 12]), blocks[step], GOOD) for step in range(4)]
    assert [[id(old) for old in olds] for olds in retired] == [[], [], [id(blocks[0])], [id(blocks[1])]]


def test_a_jump_over_steps_retires_all_that_is_too_old() -> None:
    store = RowStore(10, 14, groups=1)
    store.put_states(0, np.array([10, 11]), block(0), GOOD)
    store.put_states(1, np.array([10, 11]), block(1), GOOD)
    assert len(store.put_moments(9, np.array([10]), np.zeros((1, 1, 3)))) == 2


def test_a_block_that_was_wholly_overwritten_is_let_go() -> None:
    store = RowStore(10, 14, groups=0)
    first, second, third = block(1), block(2), block(3)
    store.put_states(0, np.array([10, 11]), first, GOOD)
    assert store.put_states(0, np.array([11, 12]), second, GOOD) == []
    assert store.put_states(0, np.array([13, 10]), third, GOOD)[0] is first
    pieces = store.locate(0, np.array([10, 11, 12, 13]), timeout_s=0)
    found = {
        int(row): float(piece.block[take, 0])
        for piece in pieces
        for row, take in zip(piece.place, piece.take, strict=True)
    }
    assert found == {0: 3.0, 1: 2.0, 2: 2.0, 3: 3.0}
