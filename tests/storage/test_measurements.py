import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.errors import StorageError
from storage.measurements import Measurements, read_measurements, write_measurements


def make(**changes: Any) -> Measurements:
    columns = {
        "position": np.array([16, 64, 64], np.int64),
        "std": np.array([0.1, np.nan, np.inf]),
        "float": np.array([0.1, 0.2, 0.3], np.float32),
        "document": np.array(["a", "\N{SNOWMAN}", ""], object),
    }
    about = {"train_length": 64, "far": [4096, 8192], "note": None}
    return replace(Measurements("state_statistics", columns, {"growth": 0.1 + 0.2, "lost": np.nan}, about), **changes)


def test_measurements_come_back_exactly(tmp_path: Path) -> None:
    write_measurements(tmp_path / "x" / "one.parquet", make())
    found = read_measurements(tmp_path / "x" / "one.parquet")
    assert found.equals(make())
    assert {name: values.dtype for name, values in found.columns.items()} == {
        "position": np.int64,
        "std": np.float64,
        "float": np.float32,
        "document": object,
    }
    assert found.summary["growth"] == 0.1 + 0.2 and np.isnan(found.summary["lost"])
    assert os.listdir(tmp_path / "x") == ["one.parquet"]


def test_equals_sees_every_number_and_label() -> None:
    columns = {**make().columns, "std": np.array([np.nextafter(0.1, 1), np.nan, np.inf])}
    for other in (
        make(columns=columns),
        make(name="coverage"),
        make(summary={"growth": 0.3, "lost": np.nan}),
        make(summary={"growth": 0.1 + 0.2}),
        make(about={"train_length": 64}),
        make(columns={name: values for name, values in columns.items() if name != "document"}),
    ):
        assert not make().equals(other)
    assert make().equals(make())


def test_only_positions_that_increase_make_a_curve() -> None:
    assert not make().is_by_position
    assert make(columns={"position": np.array([0, 16, 17], np.int64)}).is_by_position


def test_the_table_can_be_read_by_others(tmp_path: Path) -> None:
    write_measurements(tmp_path / "one.parquet", make())
    row = pq.read_table(tmp_path / "one.parquet").to_pylist()[1]
    assert row["position"] == 64 and row["document"] == "\N{SNOWMAN}" and np.isnan(row["std"])


def test_an_empty_table_is_kept_too(tmp_path: Path) -> None:
    empty = make(columns={"position": np.zeros(0, np.int64), "std": np.zeros(0)})
    write_measurements(tmp_path / "one.parquet", empty)
    assert read_measurements(tmp_path / "one.parquet").equals(empty)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": "a/b"}, "called 'a/b'; write letters, digits and underscores"),
        ({"columns": {"std": np.zeros(2)}}, "need a column position of int64"),
        ({"columns": {"position": np.zeros(2)}}, "need a column position of int64"),
        ({"columns": {"position": np.zeros(2, np.int64), "std": np.zeros(3)}}, "differ in shape"),
        ({"columns": {"position": np.zeros((2, 1), np.int64)}}, "differ in shape"),
        ({"summary": {"std": 1.0}}, "a column and a summary called std"),
    ],
)
def test_columns_that_make_no_table_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(StorageError, match=sentence):
        make(**changes)


def test_missing_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.parquet"
    with pytest.raises(StorageError, match="there are no measurements"):
        read_measurements(path)
    write_measurements(path, make())
    os.truncate(path, 100)
    with pytest.raises(StorageError, match="holds no whole measurements"):
        read_measurements(path)
    pq.write_table(pa.table({"position": [1]}), path)
    with pytest.raises(StorageError, match="holds no whole measurements"):
        read_measurements(path)
