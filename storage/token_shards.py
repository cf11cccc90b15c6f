"""Tokens of streamed text in shards: what is whole stays, so that an interrupted build goes on where it was.

A shard is one parquet file, `shard-00000.parquet`, that is whole or absent. It holds a row per document (id, SHA-256 of
the text, its UTF-8 bytes, its tokens) and, in the file's metadata, the place in the stream at its end. Where a shard
ends has no influence on what the cache holds: joined, they give the same bytes whatever their size and however often
the build was interrupted. One process writes them at a time, under the lock of the cache.
"""

import io
import itertools
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storage import files
from storage.errors import StorageError
from storage.hub_text import HubText, State, open_hub_text
from storage.settings import DataSettings
from storage.splits import text_hash
from storage.tokens import Tokenizer, utf8

SHARD_TOKENS = 2**22
"""Tokens after which a shard is closed: what an interruption costs at most."""
BATCH = 64
"""Documents that are read and tokenised at once."""
_METADATA = b"shard"

Columns = dict[str, list[Any]]
Say = Callable[[str], None]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reached:
    """How far a build is at the end of a shard, its earlier shards included."""

    state: State | None = None
    """Where the stream goes on; None at its start."""
    documents: int = 0
    tokens: int = 0
    left_out: int = 0
    """Documents that hold the token that ends a text; they could not be told from two documents."""
    done: bool = False
    """Whether nothing is left to read."""


def gather_shards(
    folder: Path, settings: DataSettings, tokenizer: Tokenizer, *, shard_tokens: int = SHARD_TOKENS, say: Say
) -> tuple[list[Path], Reached]:
    """Read `data.dataset` into shards in `folder`, after those that are whole there; all of them, and what they hold.

    Ends with the document that completes `data.max_tokens`, or with the split. Raises StorageError as `open_hub_text`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths, reached = _whole_shards(folder)
    if paths:
        say(f"{len(paths)} shards are here already: {_words(reached)}")
    if not reached.done:
        with open_hub_text(settings, reached.state) as text:
            for shard in _shards(text, tokenizer, reached, shard_tokens):
                paths.append(_shard_path(folder, len(paths)))
                _write_shard(paths[-1], *shard)
                reached = shard[1]
                say(_words(reached))
    if reached.tokens < settings.max_tokens:
        say(f"the split {settings.dataset_split} ends below data.max_tokens={settings.max_tokens:,}")
    return paths, reached


def _shards(
    text: HubText, tokenizer: Tokenizer, reached: Reached, shard_tokens: int
) -> Iterator[tuple[Columns, Reached]]:
    while not reached.done:
        columns, reached = _read_shard(text, tokenizer, reached, shard_tokens)
        yield columns, reached


def _words(reached: Reached) -> str:
    return f"{reached.tokens:,} tokens in {reached.documents:,} documents"


def _read_shard(text: HubText, tokenizer: Tokenizer, reached: Reached, shard_tokens: int) -> tuple[Columns, Reached]:
    max_tokens = text.settings.max_tokens
    columns: Columns = {"id": [], "text_hash": [], "text_bytes": [], "tokens": []}
    end = reached.tokens + shard_tokens
    while not reached.done and reached.tokens < end:
        row = text.row
        batch = text.take(BATCH)
        encoded = _encode(text, tokenizer, batch, row)
        reached = replace(reached, state=text.state(), done=len(batch) < BATCH)
        for index, (document, tokens) in enumerate(zip(batch, encoded, strict=True)):
            if tokenizer.end_of_text is not None and tokenizer.end_of_text in tokens:
                reached = replace(reached, left_out=reached.left_out + 1)
                continue
            columns["id"].append(f"{text.name}#{row + index}")
            columns["text_hash"].append(text_hash(document))
            columns["text_bytes"].append(len(utf8(document)))
            columns["tokens"].append(tokens.astype(tokenizer.dtype.newbyteorder("<")).tobytes())
            total = reached.tokens + len(tokens)
            reached = replace(reached, tokens=total, documents=reached.documents + 1)
            if max_tokens and total >= max_tokens:
                return columns, replace(reached, done=True)
    return columns, reached


def _encode(text: HubText, tokenizer: Tokenizer, batch: Sequence[str], row: int) -> list[Any]:
    try:
        return tokenizer.encode_batch(batch)
    except StorageError as error:
        last = row + len(batch) - 1
        raise StorageError(f"data.dataset: {text.name}, in one of the rows {row} to {last}: {error}") from error


def _shard_path(folder: Path, index: int) -> Path:
    return folder / f"shard-{index:05d}.parquet"


def _write_shard(path: Path, columns: Columns, reached: Reached) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"id": pa.string(), "text_hash": pa.string(), "text_bytes": pa.int64(), "tokens": pa.large_binary()}
    schema = pa.schema(types.items(), metadata={_METADATA: json.dumps(asdict(reached)).encode()})
    content = io.BytesIO()
    pq.write_table(pa.table(columns, schema=schema), content, write_page_checksum=True)
    files.write_bytes(path, content.getvalue())


def _read(path: Path) -> tuple[Columns, Reached]:
    import pyarrow.parquet as pq

    table = pq.read_table(path, page_checksum_verification=True)
    return table.to_pydict(), Reached(**json.loads(table.schema.metadata[_METADATA]))


def _whole_shards(folder: Path) -> tuple[list[Path], Reached]:
    """The shards that can be read, and where the last of them ended; what follows a damaged one is removed."""
    paths: list[Path] = []
    reached = Reached()
    for index in itertools.count():
        path = _shard_path(folder, index)
        try:
            _, reached = _read(path)
        except FileNotFoundError:
            break
        # pyarrow raises an OSError or one of its own for damage, json and the dataclass theirs.
        except Exception as error:
            _log.warning("token shard %s is damaged (%s); the text is read again from there", path, error)
            break
        paths.append(path)
    for path in set(folder.glob("*")) - set(paths):
        path.unlink()
    return paths, reached


def join_shards(paths: Sequence[Path], tokens_file: Path, itemsize: int) -> tuple[Columns, npt.NDArray[np.int64]]:
    """Write the tokens of all shards to one file; return the documents' columns and offsets, int64 (D + 1,) in tokens.

    `itemsize` is that of a token, in bytes.
    """
    joined: Columns = {"id": [], "text_hash": [], "text_bytes": []}
    sizes: list[int] = []
    with tokens_file.open("wb") as out:
        for path in paths:
            columns, _ = _read(path)
            out.writelines(columns["tokens"])
            sizes.extend(len(tokens) // itemsize for tokens in columns["tokens"])
            for name, column in joined.items():
                column.extend(columns[name])
    return joined, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
