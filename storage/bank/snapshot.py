"""Snapshots of the bank: one Arrow IPC file per shard, readable by any number of shards.

A file `bank-<shard>-of-<shards>.arrow` holds the rows of its shard in row order: `row` (int64), `state` (E values in
wire precision) and `moments` (3 K float64), the last two only if that step has them. A file
`reservoir-<shard>-of-<shards>.arrow` beside it, of a bank with a reservoir, holds the entries of its rows in the order
of their keys: `key` (uint64), `step`, `row` and `state`. The schema's metadata say which bank it was, so that a file of
another bank or an incomplete set is refused.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from storage.bank.contract import Holdings
from storage.bank.layout import BankLayout, Wire
from storage.bank.reservoir import Entries
from storage.bank.reservoir_store import ReservoirStore
from storage.bank.row_store import RowStore
from storage.errors import StorageError

_FORMAT = 2
_BATCH_BYTES = 64 << 20
"""Rows are gathered in batches of about this size, so that writing needs little memory beside the bank's own."""


class Part(NamedTuple):
    """Which part of a snapshot a shard is to write."""

    shard: int
    shards: int
    holds: Holdings
    """What the whole bank holds of the step."""
    limit: int
    """The largest key of the reservoir of the whole bank; a shard's entries above it are left out."""


def write_shard(
    store: RowStore, drawn: ReservoirStore, layout: BankLayout, folder: Path, step: int, part: Part, timeout_s: float
) -> None:
    """Write one shard's files of `step` (-1: nothing), waiting for late rows; each appears whole or not at all."""
    header = {"format": _FORMAT, "layout": layout.to_dict(), "seed": drawn.seed, "counters": store.counters}
    header |= {"step": step, "shard": part.shard, "shards": part.shards} | part.holds._asdict()
    metadata = {"bank": json.dumps(header)}
    state = pa.field("state", pa.list_(pa.from_numpy_dtype(layout.wire_type), layout.elements))
    fields = [pa.field("row", pa.int64())]
    if part.holds.states:
        fields.append(state)
    if part.holds.moments:
        fields.append(pa.field("moments", pa.list_(pa.float64(), 3 * len(layout.groups))))
    schema = pa.schema(fields, metadata=metadata)
    _write(_path(folder, "bank", part), schema, _batches(store, layout, schema, step, timeout_s))
    if part.holds.reservoir:
        ids = [pa.field("key", pa.uint64()), pa.field("step", pa.int64()), pa.field("row", pa.int64())]
        schema = pa.schema([*ids, state], metadata=metadata)
        entries = drawn.entries(step + 1, part.limit, timeout_s)
        _write(_path(folder, "reservoir", part), schema, _entry_batches(entries, layout, schema))


def _path(folder: Path, kind: str, part: Part) -> Path:
    return folder / f"{kind}-{part.shard:05d}-of-{part.shards:05d}.arrow"


def _write(target: Path, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    partial = target.with_suffix(".partial")
    with partial.open("wb") as file:
        with pa.ipc.new_file(file, schema) as writer:
            for batch in batches:
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
            states = store.states(step, timeout_s)[lo - store.lo : lo - store.lo + rows.size]
            values = pa.array(states.reshape(-1))
            columns.append(pa.FixedSizeListArray.from_arrays(values, layout.elements))
        if partials is not None:
            sums = pa.array(partials[rows - store.lo].reshape(-1))
            columns.append(pa.FixedSizeListArray.from_arrays(sums, 3 * len(layout.groups)))
        yield pa.record_batch(columns, schema=schema)


def _entry_batches(entries: Entries, layout: BankLayout, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    count = max(1, _BATCH_BYTES // layout.row_bytes)
    for start in range(0, len(entries.keys), count):
        part = entries.take(slice(start, start + count))
        values = pa.array(part.block(layout.elements, layout.wire_type).reshape(-1))
        columns = [pa.array(part.keys), pa.array(part.steps), pa.array(part.rows)]
        columns.append(pa.FixedSizeListArray.from_arrays(values, layout.elements))
        yield pa.record_batch(columns, schema=schema)


def remove_snapshot(folder: Path) -> None:
    """Remove the bank's own files of an earlier snapshot, whole or partial, from `folder`; makes it if absent."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind in ("bank", "reservoir"):
        for path in [*folder.glob(f"{kind}-*-of-*.arrow"), *folder.glob(f"{kind}-*-of-*.partial")]:
            path.unlink()


def read_header(folder: Path, layout: BankLayout) -> dict[str, Any]:
    """Check that `folder` holds one whole snapshot of a bank of this layout.

    Returns:
        `step`, `states`, `moments`, `reservoir`, its `seed`, and `counters` summed over its shards.

    Raises:
        StorageError: no snapshot, a missing or unreadable file, or a bank of another layout.
    """
    headers = _read_set(folder, "bank", layout)
    first = headers[0]
    same = ("step", "shards", *Holdings._fields)
    kept = _read_set(folder, "reservoir", layout) if first["reservoir"] else []
    for header in [*headers, *kept]:
        if any(header[key] != first[key] for key in same):
            raise StorageError(
                f"{header['path']} is of another snapshot than {first['path']}; use a folder with one snapshot"
            )
    counters = {name: sum(header["counters"][name] for header in headers) for name in first["counters"]}
    return {key: first[key] for key in (*same, "seed")} | {"counters": counters}


def _read_set(folder: Path, kind: str, layout: BankLayout) -> list[dict[str, Any]]:
    """The headers of all files of one kind, in the order of their shards; each with its `path`."""
    paths = sorted(folder.glob(f"{kind}-*-of-*.arrow"))
    if not paths:
        raise StorageError(
            f"{folder} holds no snapshot of a state bank ({kind} files); name the folder a snapshot was written to"
        )
    headers = [_read_one(path) | {"path": str(path)} for path in paths]
    if [header["shard"] for header in headers] != list(range(headers[0]["shards"])):
        raise StorageError(
            f"{folder} holds {len(paths)} of {headers[0]['shards']} {kind} files of a snapshot; use a whole one"
        )
    for header in headers:
        if header["layout"] != layout.to_dict():
            difference = _difference(header["layout"], layout.to_dict())
            raise StorageError(f"{header['path']} is of another bank: {difference}")
    return headers


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
    for batch in _stored(folder, "bank"):
        _load_batch(store, layout, header, batch)
    store.counters = dict.fromkeys(store.counters, 0)


def load_reservoir(drawn: ReservoirStore, folder: Path, layout: BankLayout, header: dict[str, Any]) -> None:
    """Replace the content of `drawn` by the entries of its rows in the snapshot."""
    drawn.clear()
    if header["reservoir"]:
        parts = [_load_entries(drawn, layout, batch) for batch in _stored(folder, "reservoir")]
        drawn.restore(header["step"] + 1, header["seed"], parts)


def _stored(folder: Path, kind: str) -> Iterator[pa.RecordBatch]:
    for path in sorted(folder.glob(f"{kind}-*-of-*.arrow")):
        with pa.memory_map(str(path)) as source:
            reader = pa.ipc.open_file(source)
            yield from (reader.get_batch(index) for index in range(reader.num_record_batches))


def _load_entries(drawn: ReservoirStore, layout: BankLayout, batch: pa.RecordBatch) -> Entries:
    keys, steps, rows = (batch.column(name).to_numpy() for name in ("key", "step", "row"))
    mine = np.flatnonzero((rows >= drawn.lo) & (rows < drawn.hi))
    # Fancy indexing copies, so the bank keeps nothing of the mapped file.
    return Entries.of_block(keys[mine], steps[mine], rows[mine], _states_of(batch, layout)[mine]).owned()


def _states_of(batch: pa.RecordBatch, layout: BankLayout) -> Wire:
    return batch.column("state").flatten().to_numpy(zero_copy_only=True).reshape(-1, layout.elements)


def _load_batch(store: RowStore, layout: BankLayout, header: dict[str, Any], batch: pa.RecordBatch) -> None:
    rows = batch.column("row").to_numpy()
    mine = np.flatnonzero((rows >= store.lo) & (rows < store.hi))
    if not mine.size:
        return
    if header["states"]:
        # Fancy indexing copies, as above.
        states = _states_of(batch, layout)[mine]
        store.put_states(header["step"], rows[mine], rows[:0], states)
    if header["moments"]:
        sums = batch.column("moments").flatten().to_numpy(zero_copy_only=True).reshape(-1, len(layout.groups), 3)
        store.put_moments(header["step"], rows[mine], sums[mine])
