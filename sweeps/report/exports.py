"""The numbers behind the figures as CSV and Parquet, a reading per line."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from storage.curves import Curve
from storage.files import write_bytes
from storage.measurements import Measurements
from sweeps.report.results import ArmResult

Columns = dict[str, list[Any]]
_PLACES = ("position", "layer", "head", "window", "document")
"""Columns of a diagnostic that say what a reading is of."""


def write_exports(folder: Path, results: Sequence[ArmResult]) -> list[Path]:
    """Write `curves.{csv,parquet}` and `diagnostics.{csv,parquet}`; return their paths.

    `curves`: a line per trial, split and bin (position_low, position_high], all windows added up: ppl = exp(nll_sum /
    count). `diagnostics`: a line per trial, diagnostic, measure and place; the CSV has those by position only, the
    Parquet also those by layer, head and window.
    """
    paths = _write(folder, "curves", curve_columns(results))
    measured = diagnostic_columns(results)
    if measured["measure"]:
        by_position = [
            at for at, name in enumerate(measured["layer"]) if name is None and measured["window"][at] is None
        ]
        paths += _write(folder, "diagnostics", measured, csv_lines=by_position)
    return paths


def _of_trial(result: ArmResult) -> dict[str, Any]:
    return {
        "group": result.group,
        "label": result.label,
        "arm": result.arm,
        "value": result.value,
        "seed": result.seed,
    }


def curve_columns(results: Sequence[ArmResult]) -> Columns:
    """The curves of every trial and split."""
    names = ("split", "position_low", "position_high", "nll_sum", "count", "ppl")
    columns: Columns = {name: [] for name in ("group", "label", "arm", "value", "seed", *names)}
    for result in results:
        for curve in (result.select, result.report, result.apart):
            if curve is not None:
                _append(columns, _of_trial(result) | {"split": curve.split}, _bins(curve))
    return columns


def _bins(curve: Curve) -> dict[str, np.ndarray]:
    return {
        "position_low": curve.edges[:-1],
        "position_high": curve.edges[1:],
        "nll_sum": curve.nll_sum.sum(axis=0),
        "count": curve.count.sum(axis=0),
        "ppl": curve.perplexity(),
    }


def diagnostic_columns(results: Sequence[ArmResult]) -> Columns:
    """The diagnostics of every trial: `reading` of `measure` at the place that the other columns name."""
    columns: Columns = {
        name: [] for name in ("group", "label", "arm", "value", "seed", "diagnostic", "measure", *_PLACES, "reading")
    }
    for result in results:
        for table in result.measurements.values():
            for measure in sorted(table.columns.keys() - set(_PLACES)):
                same = _of_trial(result) | {"diagnostic": table.name, "measure": measure}
                _append(columns, same, _readings(table, measure))
    return columns


def _readings(table: Measurements, measure: str) -> dict[str, Any]:
    nothing = [None] * len(table.position)
    return {place: table.columns.get(place, nothing) for place in _PLACES} | {
        "reading": np.asarray(table.columns[measure], np.float64)
    }


def _append(columns: Columns, same: dict[str, Any], lines: dict[str, Any]) -> None:
    count = len(next(iter(lines.values())))
    for name, value in same.items():
        columns[name] += [value] * count
    for name, values in lines.items():
        columns[name] += values.tolist() if isinstance(values, np.ndarray) else values


def _write(folder: Path, name: str, columns: Columns, csv_lines: Sequence[int] | None = None) -> list[Path]:
    import pyarrow as pa
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pq

    kinds = {"value": pa.float64(), **dict.fromkeys(("layer", "head", "window"), pa.int64()), "document": pa.string()}
    table = pa.table({key: pa.array(values, kinds.get(key)) for key, values in columns.items()})
    chosen = table
    if csv_lines is not None:
        chosen = table.take(pa.array(csv_lines, pa.int64())).drop_columns(["layer", "head", "window", "document"])
    paths = [folder / f"{name}.csv", folder / f"{name}.parquet"]
    for path, write, content in ((paths[0], pa_csv.write_csv, chosen), (paths[1], pq.write_table, table)):
        sink = pa.BufferOutputStream()
        write(content, sink)
        write_bytes(path, sink.getvalue().to_pybytes())
    return paths
