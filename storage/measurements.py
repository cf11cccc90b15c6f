"""What a diagnostic measured on one trial: a small table by position, kept as Parquet.

The columns are the table's; the summary and what else must be known to read it go as JSON into the schema's metadata.
"""

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from storage import files
from storage.errors import StorageError

FORMAT_VERSION = 1
METADATA_KEY = b"initial_state_sweeps.measurements"


@dataclass(frozen=True, eq=False)
class Measurements:
    """One table of a diagnostic. Compare with `equals`. Raises StorageError for columns that make no table."""

    name: str
    """Lower case and underscores: the name of its file and the prefix of its metrics."""
    columns: dict[str, np.ndarray]
    """Columns of equal length, numbers or text; `position` (int64, in tokens) is among them."""
    summary: dict[str, float]
    """The few figures that stand for the table; none is called like a column."""
    about: dict[str, Any]
    """Whatever else a reader must know, as JSON holds it: lengths, numbers of windows, units."""

    def __post_init__(self) -> None:
        lengths = {name: values.shape for name, values in self.columns.items()}
        if not self.name.isidentifier():
            raise StorageError(f"measurements are called {self.name!r}; write letters, digits and underscores")
        if "position" not in self.columns or self.columns["position"].dtype != np.int64:
            raise StorageError(f"the measurements {self.name} need a column position of int64")
        if len(set(lengths.values())) != 1 or self.columns["position"].ndim != 1:
            raise StorageError(f"the columns of the measurements {self.name} differ in shape: {lengths}")
        twice = sorted(self.summary.keys() & self.columns.keys())
        if twice:
            raise StorageError(f"the measurements {self.name} have a column and a summary called {', '.join(twice)}")

    @property
    def position(self) -> np.ndarray:
        """(n,) int64 positions of the rows, in tokens."""
        return self.columns["position"]

    @property
    def is_by_position(self) -> bool:
        """Whether every position comes once and they increase: a curve for each column of numbers."""
        return bool((np.diff(self.position) > 0).all())

    def equals(self, other: "Measurements") -> bool:
        """Whether every number and label is the same, bit for bit up to the kind of NaN."""
        return (
            self.name == other.name
            and list(self.columns) == list(other.columns)
            and all(_same_column(values, other.columns[name]) for name, values in self.columns.items())
            and self.summary.keys() == other.summary.keys()
            and all(_same_number(value, other.summary[key]) for key, value in self.summary.items())
            and self.about == other.about
        )


def _same_column(one: np.ndarray, other: np.ndarray) -> bool:
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f" and other.dtype.kind == "f")


def _same_number(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def write_measurements(path: str | os.PathLike[str], measurements: Measurements) -> None:
    """Write them to the file `path`, atomically. Raises OSError, TypeError for an `about` that JSON does not know."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({name: pa.array(values) for name, values in measurements.columns.items()})
    metadata = {
        "format": FORMAT_VERSION,
        "name": measurements.name,
        "rows": table.num_rows,
        "summary": {key: float(value) for key, value in measurements.summary.items()},
        "about": measurements.about,
    }
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: json.dumps(metadata)}), sink)
    files.write_bytes(path, sink.getvalue().to_pybytes())


def read_measurements(path: str | os.PathLike[str]) -> Measurements:
    """Read what `write_measurements` wrote, exactly. Raises StorageError for a missing, damaged or foreign file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not Path(path).is_file():
        raise StorageError(f"there are no measurements {path}; run the trial again")
    try:
        table = pq.read_table(path)
        metadata = json.loads(table.schema.metadata[METADATA_KEY])
        if metadata["format"] != FORMAT_VERSION:
            raise StorageError(f"its format is {metadata['format']}, this version reads {FORMAT_VERSION}")
        columns = {name: table[name].to_numpy() for name in table.column_names}
        return Measurements(metadata["name"], columns, metadata["summary"], metadata["about"])
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{path} holds no whole measurements ({error}); run the trial again") from error
