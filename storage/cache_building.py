"""How a token cache is built: documents to tokens, in a folder beside, that is flushed and then renamed into place.

The caller holds the cache's lock (storage.token_cache), so what an earlier builder left beside it is nobody's.
"""

import hashlib
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storage import files
from storage.documents import read_documents
from storage.errors import StorageError
from storage.settings import DataSettings
from storage.splits import APART, FRACTIONS, assign_splits, text_hash
from storage.token_shards import Columns, gather_shards, join_shards
from storage.tokens import Tokenizer, utf8

FORMAT_VERSION = 2
TOKENS, OFFSETS, DOCUMENTS, SIDECAR = "tokens.bin", "offsets.npy", "documents.parquet", "cache.json"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a cache is built from."""

    settings: DataSettings
    """Pinned: a dataset and a tokenizer of the Hub by their commits."""
    tokenizer: Tokenizer
    content_hash: str
    """`data_content_hash` of the settings."""


def build_cache(folder: Path, recipe: Recipe, *, shard_tokens: int, say: Callable[[str], None]) -> None:
    """Build the cache `folder`, whole or not at all; a dataset that is streamed goes on from its last whole shard.

    Raises StorageError for text that cannot be used and for a place that cannot be written.
    """
    try:
        with _work_folder(folder) as work:
            if recipe.settings.dataset:
                _build_streamed(work, folder, recipe, shard_tokens, say)
            else:
                columns, offsets = _write_tokens(work, recipe.settings, recipe.tokenizer)
                _finish(work, folder, recipe, columns, offsets, {})
    except OSError as error:
        raise StorageError(
            f"token cache {folder} cannot be written ({error.strerror or error}); make room, or choose another folder"
        ) from error


@contextmanager
def _work_folder(folder: Path) -> Iterator[Path]:
    # The lock is held, so these were left by a process that was killed.
    for stale in folder.parent.glob(f".{folder.name}-*"):
        shutil.rmtree(stale, ignore_errors=True)
    work = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}.tmp")
    work.mkdir()
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _build_streamed(work: Path, folder: Path, recipe: Recipe, shard_tokens: int, say: Callable[[str], None]) -> None:
    shards = folder.with_name(folder.name + ".shards")
    paths, reached = gather_shards(shards, recipe.settings, recipe.tokenizer, shard_tokens=shard_tokens, say=say)
    columns, offsets = join_shards(paths, work / TOKENS, recipe.tokenizer.dtype.itemsize)
    columns |= {"split": [""] * reached.documents, "holds_end_of_text": [False] * reached.documents}
    names = ("dataset", "dataset_config", "dataset_split", "revision", "field", "max_tokens", "tokenizer")
    source = {name: getattr(recipe.settings, name) for name in names}
    _finish(work, folder, recipe, columns, offsets, {"source": source, "left_out": reached.left_out})
    shutil.rmtree(shards)


def _finish(
    work: Path, folder: Path, recipe: Recipe, columns: Columns, offsets: npt.NDArray[np.int64], about: dict[str, Any]
) -> None:
    """Write what stands beside the tokens, and move the whole into place; the sidecar says `about` too."""
    np.save(work / OFFSETS, offsets)
    _fill_splits(columns, "data.dataset" if recipe.settings.dataset else "data.files")
    _write_documents(work, columns)
    for name in (TOKENS, OFFSETS, DOCUMENTS):
        files.sync_file(work / name)
    sidecar = {
        "format": FORMAT_VERSION,
        "tokenizer": recipe.tokenizer.name,
        "dtype": recipe.tokenizer.dtype.name,
        "content_hash": recipe.content_hash,
        **about,
        "documents": len(columns["id"]),
        "tokens": int(offsets[-1]),
        "sha256": {name: file_hash(work / name) for name in (TOKENS, OFFSETS, DOCUMENTS)},
    }
    files.write_json(work / SIDECAR, sidecar)
    _move_into_place(work, folder)


def _move_into_place(work: Path, folder: Path) -> None:
    aside = work.with_suffix(".old")
    if folder.exists():
        # A folder cannot be renamed over one with content. Readers keep the files they have open.
        folder.rename(aside)
    work.rename(folder)
    files.sync_folder(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _write_tokens(work: Path, settings: DataSettings, tokenizer: Tokenizer) -> tuple[Columns, npt.NDArray[np.int64]]:
    columns: Columns = {"id": [], "text_hash": [], "text_bytes": [], "split": [], "holds_end_of_text": []}
    offsets = [0]
    with (work / TOKENS).open("wb") as out:
        for document in read_documents(settings):
            try:
                tokens = tokenizer.encode(document.text)
            except StorageError as error:
                raise StorageError(f"data.files: document {document.id!r}: {error}") from error
            out.write(tokens.astype(tokenizer.dtype.newbyteorder("<")).tobytes())
            offsets.append(offsets[-1] + len(tokens))
            columns["id"].append(document.id)
            columns["text_hash"].append(text_hash(document.text))
            columns["text_bytes"].append(len(utf8(document.text)))
            columns["split"].append(APART if document.apart else "")
            columns["holds_end_of_text"].append(tokenizer.end_of_text is not None and tokenizer.end_of_text in tokens)
    return columns, np.asarray(offsets, np.int64)


def _fill_splits(columns: Columns, setting: str) -> None:
    pairs = list(zip(columns["text_hash"], columns["split"], strict=True))
    empty = text_hash("")
    split_by_hash = assign_splits(content for content, split in pairs if not split and content != empty)
    if missing := [split for split in FRACTIONS if split not in split_by_hash.values()]:
        raise StorageError(
            f"{setting} holds {len(split_by_hash)} distinct non-empty document(s), so the split {missing[0]!r} would "
            "be empty; give at least three, for example one file per chapter or one JSON line per article"
        )
    # An empty text has no tokens and so no effect; any split will do, and it must not fill one.
    columns["split"] = [split or split_by_hash.get(content, "train") for content, split in pairs]


def _write_documents(work: Path, columns: Columns) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), work / DOCUMENTS)


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes, hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
