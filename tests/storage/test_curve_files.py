import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from storage.curve_files import read_curve, write_curve
from storage.curves import Curve, CurveBuilder
from storage.errors import StorageError


@pytest.fixture
def curve() -> Curve:
    nll = np.random.default_rng(0).exponential(size=(3, 1000))
    nll[1, 5], nll[2, 700] = np.nan, np.inf
    builder = CurveBuilder(["a", "a", "\N{SNOWMAN}"], [0, 1000, 7], 1000, 64, "select", "tokens", 3.7)
    builder.accumulate(nll, 1)
    return builder.finish()


def test_a_curve_comes_back_exactly(curve: Curve, tmp_path: Path) -> None:
    write_curve(tmp_path / "x" / "curve.parquet", curve)
    found = read_curve(tmp_path / "x" / "curve.parquet")
    assert found.equals(curve)
    assert found.nll_sum.dtype == np.float64 and found.count.dtype == found.edges.dtype == np.int64
    assert np.array_equal(found.nll_sum, curve.nll_sum, equal_nan=True) and found.document_ids == curve.document_ids
    assert os.listdir(tmp_path / "x") == ["curve.parquet"]


def test_equals_sees_the_last_bit_and_every_label(curve: Curve) -> None:
    other = curve.nll_sum.copy()
    other[0, 0] = np.nextafter(other[0, 0], np.inf)
    assert curve.equals(replace(curve))
    assert not curve.equals(replace(curve, nll_sum=other))
    assert not curve.equals(replace(curve, split="report"))


def test_the_table_can_be_read_by_others(curve: Curve, tmp_path: Path) -> None:
    write_curve(tmp_path / "curve.parquet", curve)
    rows = pq.read_table(tmp_path / "curve.parquet").to_pylist()
    assert len(rows) == curve.nll_sum.size
    assert {name: rows[0][name] for name in ("window", "document_id", "start", "bin_start", "bin_end", "count")} == {
        "window": 0,
        "document_id": "a",
        "start": 0,
        "bin_start": 0,
        "bin_end": 16,
        "count": 16,
    }
    assert rows[0]["nll_sum"] == curve.nll_sum[0, 0] and rows[-1]["nonfinite"] == 1


def test_missing_damaged_and_foreign_files_are_refused(curve: Curve, tmp_path: Path) -> None:
    path = tmp_path / "curve.parquet"
    with pytest.raises(StorageError, match="there is no curve"):
        read_curve(path)
    write_curve(path, curve)
    os.truncate(path, 100)
    with pytest.raises(StorageError, match="not a whole curve"):
        read_curve(path)
    import pyarrow as pa

    pq.write_table(pa.table({"x": [1]}), path)
    with pytest.raises(StorageError, match="not a whole curve"):
        read_curve(path)
