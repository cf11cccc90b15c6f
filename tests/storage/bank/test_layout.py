import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.bank.layout import BankLayout
from storage.errors import StorageError


@given(rows=st.integers(1, 200), data=st.data())
def test_shards_are_contiguous_disjoint_and_cover_all_rows(rows: int, data: st.DataObject) -> None:
    shards = data.draw(st.integers(1, rows))
    layout = BankLayout(rows=rows, elements=1)
    owner = layout.shard_of(np.arange(rows), shards)
    ranges = [layout.shard_range(shard, shards) for shard in range(shards)]
    assert [row for lo, hi in ranges for row in range(lo, hi)] == list(range(rows))
    assert all((owner[lo:hi] == shard).all() and hi > lo for shard, (lo, hi) in enumerate(ranges))


@pytest.mark.parametrize("shards", [0, 5])
def test_more_shards_than_rows_or_none_are_refused(shards: int) -> None:
    with pytest.raises(StorageError, match="from 1 to 4"):
        BankLayout(rows=4, elements=1).shard_range(0, shards)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 0}, "at least 1"),
        ({"wire_dtype": "fp16"}, "'fp32' or 'bf16'"),
        ({"groups": (("a", 0, 9),)}, "within 0 to 8"),
        ({"groups": (("a", 3, 3),)}, "non-empty"),
        ({"groups": (("a", 0, 1), ("a", 1, 2))}, "its own name"),
    ],
)
def test_wrong_layouts_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(StorageError, match=message):
        BankLayout(**({"rows": 4, "elements": 8} | change))  # type: ignore[arg-type]
