"""Curves as Parquet: a row per window and bin, what belongs to the whole curve in the schema's metadata.

Columns: window, document_id, start (tokens), bin_start and bin_end (positions, the bin is (bin_start, bin_end]),
nll_sum (nats, float64), count (tokens), nonfinite (tokens of the window whose NLL was not finite).
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from storage import files
from storage.curves import Curve
from storage.errors import StorageError

FORMAT_VERSION = 1
METADATA_KEY = b"initial_state_sweeps.curve"


def write_curve(path: str | os.PathLike[str], curve: Curve) -> None:
    """Write `curve` to the file `path`, atomically. Raises OSError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    windows, bins = curve.nll_sum.shape
    table = pa.table(
        {
            "window": np.repeat(np.arange(windows), bins),
            "document_id": np.repeat(np.asarray(curve.document_ids, object), bins),
            "start": np.repeat(curve.starts, bins),
            "bin_start": np.tile(curve.edges[:-1], windows),
            "bin_end": np.tile(curve.edges[1:], windows),
            "nll_sum": curve.nll_sum.ravel(),
            "count": curve.count.ravel(),
            "nonfinite": np.repeat(curve.nonfinite, bins),
        }
    )
    metadata = {
        "format": FORMAT_VERSION,
        "windows": windows,
        "bins": bins,
        "split": curve.split,
        "train_length": curve.train_length,
        "unit": curve.unit,
        "bytes_per_token": curve.bytes_per_token,
    }
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: json.dumps(metadata)}), sink)
    files.write_bytes(path, sink.getvalue().to_pybytes())


def read_curve(path: str | os.PathLike[str]) -> Curve:
    """Read what `write_curve` wrote, exactly. Raises StorageError for a missing, damaged or foreign file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not Path(path).is_file():
        raise StorageError(f"there is no curve {path}; evaluate the trial first")
    try:
        table = pq.read_table(path)
        metadata = json.loads(table.schema.metadata[METADATA_KEY])
        return _curve({name: table[name].to_numpy() for name in table.column_names}, metadata)
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{path} is not a whole curve ({error}); evaluate the trial again") from error


def _curve(columns: dict[str, Any], metadata: dict[str, Any]) -> Curve:
    if metadata["format"] != FORMAT_VERSION:
        raise StorageError(f"its format is {metadata['format']}, this version reads {FORMAT_VERSION}")
    shape = (metadata["windows"], metadata["bins"])
    grid = {name: values.reshape(shape) for name, values in columns.items()}
    edges = np.concatenate([grid["bin_start"][0, :1], grid["bin_end"][0]])
    return Curve(
        edges=edges,
        nll_sum=grid["nll_sum"],
        count=grid["count"],
        nonfinite=grid["nonfinite"][:, 0].copy(),
        document_ids=tuple(grid["document_id"][:, 0]),
        starts=grid["start"][:, 0].copy(),
        split=metadata["split"],
        train_length=metadata["train_length"],
        unit=metadata["unit"],
        bytes_per_token=metadata["bytes_per_token"],
    )
