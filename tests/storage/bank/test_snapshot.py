from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from storage.bank.contract import BankTimeoutError, Holdings, StateBank
from storage.bank.in_process import InProcessBank
from storage.bank.layout import BankLayout
from storage.bank.moments import row_moments
from storage.bank.reservoir import NO_LIMIT
from storage.bank.reservoir_store import ReservoirStore
from storage.bank.row_store import RowStore
from storage.bank.slots import Slots
from storage.bank.snapshot import Part, write_shard
from storage.errors import StorageError

GROUPS = (("layer0", 0, 4), ("layer1", 4, 6))
LAYOUT = BankLayout(rows=5, elements=4, groups=(("all", 0, 4),))
STATES = np.arange(20, dtype=np.float32).reshape(5, 4)


def filled(layout: BankLayout = LAYOUT) -> InProcessBank:
    bank = InProcessBank(layout, timeout_s=0.1)
    bank.deposit(8, np.arange(5), STATES)
    return bank


@pytest.mark.ray
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 0), (0, 2)])
def test_a_snapshot_restores_on_another_number_of_shards(
    open_bank: Callable[[BankLayout, int], StateBank], tmp_path: Path, before: int, after: int
) -> None:
    layout = BankLayout(rows=7, elements=6, groups=GROUPS, capacity=5)
    states = np.arange(42, dtype=np.float32).reshape(7, 6)
    source = open_bank(layout, before)
    source.deposit(8, np.arange(7), states)
    source.merge_moments(8, np.arange(7), row_moments(states, layout))
    for step in (7, 8):
        source.offer(step, np.arange(7), states + step, seed=3)
    drawn, digest = source.reservoir(9), source.digest()
    source.snapshot(tmp_path)
    target = open_bank(layout, after)
    target.restore(tmp_path)
    assert target.digest() == digest
    assert np.array_equal(target.reservoir(9).keys, drawn.keys)
    assert np.array_equal(target.reservoir_states(drawn.steps, drawn.rows), states[drawn.rows] + drawn.steps[:, None])
    assert np.array_equal(target.withdraw(9, np.arange(7)), states)
    assert target.moments(8).total.sum() == 861.0
    assert target.counters() == {"deposits": 7, "zeroed_rows": 0, "bytes": 168}
    target.snapshot(tmp_path)  # none of the earlier files may stay beside the new ones
    files = max(1, after)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{kind}-0000{shard}-of-0000{files}.arrow" for kind in ("bank", "reservoir") for shard in range(files)
    ]


def test_bf16_snapshots_come_back_bit_for_bit(tmp_path: Path) -> None:
    layout = BankLayout(rows=5, elements=4, wire_dtype="bf16")
    bank, other = filled(layout), InProcessBank(layout)
    bank.snapshot(tmp_path)
    other.restore(tmp_path)
    assert np.array_equal(other.withdraw(9, np.arange(5)), bank.withdraw(9, np.arange(5)))


def test_moments_alone_can_be_kept(tmp_path: Path) -> None:
    bank, other = InProcessBank(LAYOUT), InProcessBank(LAYOUT)
    bank.merge_moments(2, np.arange(5), row_moments(STATES, LAYOUT))
    bank.snapshot(tmp_path)
    other.restore(tmp_path)
    assert other.moments(2).total.tolist() == [190.0]


def test_the_older_kept_step_can_be_chosen(tmp_path: Path) -> None:
    bank, other = filled(), InProcessBank(LAYOUT)
    bank.deposit(9, [0], STATES[:1])
    bank.snapshot(tmp_path, step=8)
    other.restore(tmp_path)
    assert np.array_equal(other.withdraw(9, np.arange(5)), STATES)


def test_a_generation_with_a_missing_row_is_not_written(tmp_path: Path) -> None:
    bank = InProcessBank(LAYOUT, timeout_s=0.1)
    bank.deposit(0, [0, 1, 2, 4], STATES[:4])
    with pytest.raises(BankTimeoutError, match="step 0, row 3"):
        bank.snapshot(tmp_path)
    with pytest.raises(StorageError, match="no snapshot"):
        bank.restore(tmp_path)


def test_the_banks_files_do_not_depend_on_how_rows_arrived(tmp_path: Path) -> None:
    filled().snapshot(tmp_path / "a")
    pieces = InProcessBank(LAYOUT)
    for rows in ([4, 1], [0, 3, 2]):
        pieces.deposit(8, rows, STATES[rows])
    pieces.snapshot(tmp_path / "b")
    name = "bank-00000-of-00001.arrow"
    assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_folder_without_a_snapshot_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=f"{tmp_path} holds no snapshot"):
        filled().restore(tmp_path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    for shard in (0, 2):
        rows = LAYOUT.shard_range(shard, 3)
        part = Part(shard, 3, Holdings(False, False, False), NO_LIMIT)
        store = RowStore(Slots(*rows, LAYOUT), LAYOUT.row_bytes, groups=1)
        write_shard(store, ReservoirStore(*rows, LAYOUT), LAYOUT, tmp_path, -1, part, timeout_s=0.1)
    with pytest.raises(StorageError, match="holds 2 of 3 bank files"):
        InProcessBank(LAYOUT).restore(tmp_path)


def test_a_cut_file_is_refused_and_the_bank_left_alone(tmp_path: Path) -> None:
    bank = filled()
    bank.snapshot(tmp_path)
    path = tmp_path / "bank-00000-of-00001.arrow"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(StorageError, match="no whole snapshot file"):
        bank.restore(tmp_path)
    assert np.array_equal(bank.withdraw(9, np.arange(5)), STATES)


def test_a_snapshot_of_another_bank_is_refused_with_the_difference(tmp_path: Path) -> None:
    filled().snapshot(tmp_path)
    with pytest.raises(StorageError, match="its elements is 4, the trial's is 5"):
        InProcessBank(BankLayout(rows=5, elements=5, groups=(("all", 0, 4),))).restore(tmp_path)
