"""Snapshots of the bank: one Arrow IPC file per shard, readable by any number of shards.

A file `bank-<shard>-of-<shards>.arrow` holds the rows of its shard in row order: `row` (int64), `state` (E values in
wire precision) and `moments` (3 K float64), the last two only if that step has them. The schema's metadata say which
bank it was, so that a file of another bank or an incomplete set is refused.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from storage.bank.layout import BankLayout, Int64, Wire
from storage.bank.row_store import RowStore
from storage.errors import StorageError

_FORMAT = 1
_BATCH_BYTES = 64 << 20
"""Rows are gathered in batches of about this size, so that writing needs little memory beside the bank's own."""


def write_shard(
    store: RowStore, layout: BankLayout, folder: Path, step: int, shard: int, shards: int, timeout_s: float
) -> None:
    """Write what `store` holds of `step` (-1: nothing), waiting for late rows; the file appears whole or not at all."""
    states, moments = store.holds(step)
    header = {"format": _FORMAT, "layout": layout.to_dict(), "step": step, "shard": shard, "shards": shards}
    header |= {"states": states, "moments": moments, "counters": store.counters}
    fields = [pa.field("row", pa.int64())]
    if states:
        fields.append(pa.field("state", pa.list_(pa.from_numpy_dtype(layout.wire_type), layout.elements)))
    if moments:
        fields.append(pa.field("moments", pa.list_(pa.float64(), 3 * len(layout.groups))))
    schema = pa.schema(fields, metadata={"bank": json.dumps(header)})
    target = folder / f"bank-{shard:05d}-of-{shards:05d}.arrow"
    partial = target.with_suffix(".partial")
    with partial.open("wb") as file:
        with pa.ipc.new_file(file, schema) as writer:
            for batch in _batches(store, layout, schema, step, timeout_s):
                writer.write_batch(batch)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(target)


def _batches(
    store: RowStore, layout: BankLayout, schema: pa.Schema, step: int, timeout_s: float
) -> Iterator[pa.RecordBatch]:
    if len(schema) == 1:
        return
    partials = store.moments(step, timeout_s) if "moments" in schema.names else None
    count = max(1, _BATCH_BYTES // layout.row_bytes)
    for lo in range(store.lo, store.hi, count):
        rows = np.arange(lo, min(lo + count, store.hi))
        columns: list[pa.Array] = [pa.array(rows)]
        if "state" in schema.names:
            values = pa.array(_gather(store, layout, step, rows, timeout_s).reshape(-1))
            columns.append(pa.FixedSizeListArray.from_arrays(values, layout.elements))
        if partials is not None:
            sums = pa.array(partials[rows - store.lo].reshape(-1))
            columns.append(pa.FixedSizeListArray.from_arrays(sums, 3 * len(layout.groups)))
        yield pa.record_batch(columns, schema=schema)


def _gather(store: RowStore, layout: BankLayout, step: int, rows: Int64, timeout_s: float) -> Wire:
    gathered = np.empty((rows.size, layout.elements), dtype=layout.wire_type)
    with store.lock:
        for piece in store.locate(step, rows, timeout_s):
            gathered[piece.place] = piece.block[piece.take]
    return gathered


def remove_snapshot(folder: Path) -> None:
    """Remove the bank's own files of an earlier snapshot, whole or partial, from `folder`; makes it if absent."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in [*folder.glob("bank-*-of-*.arrow"), *folder.glob("bank-*-of-*.partial")]:
        path.unlink()


def read_header(folder: Path, layout: BankLayout) -> dict[str, Any]:
    """Check that `folder` holds one whole snapshot of a bank of this layout.

    Returns:
        `step`, `states`, `moments`, and `counters` summed over its shards.

    Raises:
        StorageError: no snapshot, a missing or unreadable file, or a bank of another layout.
    """
    paths = sorted(folder.glob("bank-*-of-*.arrow"))
    if not paths:
        raise StorageError(
            f"{folder} holds no snapshot of a state bank; name the folder that a snapshot was written to"
        )
    headers = [_read_one(path) for path in paths]
    first = headers[0]
    if [header["shard"] for header in headers] != list(range(first["shards"])):
        raise StorageError(f"{folder} holds {len(paths)} of {first['shards']} files of a snapshot; use a whole one")
    for path, header in zip(paths, headers, strict=True):
        if header["layout"] != layout.to_dict():
            raise StorageError(f"{path} is of another bank: {_difference(header['layout'], layout.to_dict())}")
        if any(header[key] != first[key] for key in ("step", "states", "moments", "shards")):
            raise StorageError(f"{path} is of another snapshot than {paths[0].name}; use a folder with one snapshot")
    counters = {name: sum(header["counters"][name] for header in headers) for name in first["counters"]}
    return {key: first[key] for key in ("step", "states", "moments")} | {"counters": counters}


def _read_one(path: Path) -> dict[str, Any]:
    try:
        with pa.memory_map(str(path)) as source:
            header = json.loads((pa.ipc.open_file(source).schema.metadata or {})[b"bank"])
    except (pa.ArrowInvalid, KeyError, ValueError) as error:
        raise StorageError(
            f"{path} is no whole snapshot file of a state bank ({error}); use another snapshot"
        ) from None
    if header["format"] != _FORMAT:
        raise StorageError(f"{path} has snapshot format {header['format']}; this version reads format {_FORMAT}")
    return dict(header)


def _difference(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    key = next(key for key in wanted if found.get(key) != wanted[key])
    return f"its {key} is {found.get(key)}, the trial's is {wanted[key]}"


def load_rows(store: RowStore, folder: Path, layout: BankLayout, header: dict[str, Any]) -> None:
    """Replace the content of `store` by its rows of the snapshot; counters start at 0."""
    store.clear()
    for path in sorted(folder.glob("bank-*-of-*.arrow")):
        with pa.memory_map(str(path)) as source:
            reader = pa.ipc.open_file(source)
            for index in range(reader.num_record_batches):
                _load_batch(store, layout, header, reader.get_batch(index))
    store.counters = dict.fromkeys(store.counters, 0)


def _load_batch(store: RowStore, layout: BankLayout, header: dict[str, Any], batch: pa.RecordBatch) -> None:
    rows = batch.column("row").to_numpy()
    mine = np.flatnonzero((rows >= store.lo) & (rows < store.hi))
    if not mine.size:
        return
    if header["states"]:
        values = batch.column("state").flatten().to_numpy(zero_copy_only=True).reshape(-1, layout.elements)
        # Fancy indexing copies, so the bank keeps nothing of the mapped file.
        store.put_states(header["step"], rows[mine], values[mine], np.zeros(mine.size, dtype=bool))
    if header["moments"]:
        sums = batch.column("moments").flatten().to_numpy(zero_copy_only=True).reshape(-1, len(layout.groups), 3)
        store.put_moments(header["step"], rows[mine], sums[mine])
