"""The token cache: all documents as one flat file of tokens, built once and shared by every trial.

A cache is a folder `<root>/<key>`, where the key hashes content, file names, tokenizer content and format version:

    tokens.bin         uint16 (uint32 for more than 65,536 entries), little-endian, the documents one after the other,
                       nothing between them
    offsets.npy        int64 (D + 1,), document d is tokens[offsets[d] : offsets[d + 1]]
    documents.parquet  id, SHA-256 of the text, its UTF-8 bytes, split, whether it holds the end-of-text token
    cache.json         format version, tokenizer, dtype, content hash, counts, SHA-256 of the three files

It is built in a folder beside, flushed, and renamed into place under a lock, so that two processes that want it at
once get one whole cache. Packing is not in it: end-of-text tokens are put in when the text is read (storage.streams).
"""

import hashlib
import json
import logging
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout

from storage import files
from storage.documents import check_files, data_content_hash, read_documents, short_names
from storage.errors import StorageError
from storage.settings import DataSettings
from storage.splits import APART, FRACTIONS, assign_splits, text_hash
from storage.tokens import Tokenizer, Tokens, check_tokenizer, utf8

FORMAT_VERSION = 2
TOKENS, OFFSETS, DOCUMENTS, SIDECAR = "tokens.bin", "offsets.npy", "documents.parquet", "cache.json"
LOCK_TIMEOUT_SECONDS = 3600.0
"""How long to wait while another process builds the same cache."""

_log = logging.getLogger(__name__)


class _Damaged(Exception):
    """The folder is there but is not a whole cache; the message says why."""


@dataclass(frozen=True, eq=False)
class TokenCache:
    """An open cache. The tokens stay on disk (memory map): open it in each process rather than send it to one."""

    folder: Path
    tokens: Tokens = field(repr=False)
    """(N,) memory map, read-only."""
    offsets: npt.NDArray[np.int64] = field(repr=False)
    """(D + 1,), in tokens."""
    document_ids: tuple[str, ...] = field(repr=False)
    text_hashes: tuple[str, ...] = field(repr=False)
    """SHA-256 of each document's text, hex."""
    text_bytes: npt.NDArray[np.int64] = field(repr=False)
    """(D,) length of each document's text in UTF-8 bytes."""
    splits: tuple[str, ...] = field(repr=False)
    """Split of each document."""
    tokenizer: Tokenizer
    packing: str
    """`document` or `eos`, from the settings it was opened with."""
    content_hash: str
    """`data_content_hash` of the settings."""

    def documents_of(self, split: str) -> npt.NDArray[np.int64]:
        """Indices of the split's documents in cache order, shape (D_split,). Raises StorageError if there is none."""
        chosen = np.flatnonzero(np.asarray(self.splits) == split)
        if not len(chosen):
            raise StorageError(f"the split {split!r} holds no document; write {' or '.join(sorted(set(self.splits)))}")
        return chosen.astype(np.int64)


def open_token_cache(settings: DataSettings, root: str | os.PathLike[str]) -> TokenCache:
    """Open the cache of `settings` below the folder `root`, building it if it is missing or damaged.

    Raises StorageError for files or a tokenizer that cannot be used, fewer than three distinct documents, a document
    with the end-of-text token under `eos` packing, a root that cannot be written, and a lock that is held for an hour.
    """
    tokenizer = check_tokenizer(settings)
    content_hash = data_content_hash(settings)
    folder = Path(root).expanduser().absolute() / _cache_key(settings, content_hash)
    try:
        return _load(folder, settings, tokenizer, content_hash)
    except (_Damaged, FileNotFoundError):
        pass
    with _lock(folder):
        try:
            return _load(folder, settings, tokenizer, content_hash)
        except FileNotFoundError:
            pass
        except _Damaged as damage:
            _log.warning("token cache %s is damaged (%s); building it again", folder, damage)
        _build(folder, settings, tokenizer, content_hash)
        return _load(folder, settings, tokenizer, content_hash)


def _cache_key(settings: DataSettings, content_hash: str) -> str:
    # Names enter because document ids come from them; a renamed file must not show its old name in a table.
    names = short_names(check_files(settings))
    key = json.dumps([FORMAT_VERSION, content_hash, names])
    return hashlib.sha256(key.encode()).hexdigest()[:16]


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    path = folder.with_name(folder.name + ".lock")
    lock = FileLock(path, timeout=LOCK_TIMEOUT_SECONDS)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise StorageError(f"token cache {folder}: another process has been building it for an hour; end it") from error
    except OSError as error:
        raise StorageError(
            f"token cache: {folder.parent} cannot be written ({error.strerror}); choose another folder"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _build(folder: Path, settings: DataSettings, tokenizer: Tokenizer, content_hash: str) -> None:
    work = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}.tmp")
    work.mkdir()
    try:
        documents = _write_tokens(work, settings, tokenizer)
        _write_documents(work, documents)
        for name in (TOKENS, OFFSETS, DOCUMENTS):
            files.sync_file(work / name)
        sidecar = {
            "format": FORMAT_VERSION,
            "tokenizer": tokenizer.name,
            "dtype": tokenizer.dtype.name,
            "content_hash": content_hash,
            "documents": len(documents["id"]),
            "tokens": (work / TOKENS).stat().st_size // tokenizer.dtype.itemsize,
            "sha256": {name: _file_hash(work / name) for name in (TOKENS, OFFSETS, DOCUMENTS)},
        }
        files.write_json(work / SIDECAR, sidecar)
        _move_into_place(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _move_into_place(work: Path, folder: Path) -> None:
    aside = work.with_suffix(".old")
    if folder.exists():
        # A folder cannot be renamed over one with content. Readers keep the files they have open.
        folder.rename(aside)
    work.rename(folder)
    files.sync_folder(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _write_tokens(work: Path, settings: DataSettings, tokenizer: Tokenizer) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {"id": [], "text_hash": [], "text_bytes": [], "split": [], "holds_end_of_text": []}
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
    np.save(work / OFFSETS, np.asarray(offsets, np.int64))
    _fill_splits(columns)
    return columns


def _fill_splits(columns: dict[str, list[Any]]) -> None:
    pairs = list(zip(columns["text_hash"], columns["split"], strict=True))
    empty = text_hash("")
    split_by_hash = assign_splits(content for content, split in pairs if not split and content != empty)
    if missing := [split for split in FRACTIONS if split not in split_by_hash.values()]:
        raise StorageError(
            f"data.files holds {len(split_by_hash)} distinct non-empty document(s), so the split {missing[0]!r} would "
            "be empty; give at least three, for example one file per chapter or one JSON line per article"
        )
    # An empty text has no tokens and so no effect; any split will do, and it must not fill one.
    columns["split"] = [split or split_by_hash.get(content, "train") for content, split in pairs]


def _write_documents(work: Path, columns: dict[str, list[Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), work / DOCUMENTS)


def _load(folder: Path, settings: DataSettings, tokenizer: Tokenizer, content_hash: str) -> TokenCache:
    """Open and verify. Raises FileNotFoundError if there is no folder, _Damaged if its files are not what it says."""
    if not folder.is_dir():
        raise FileNotFoundError(folder)
    _verify(folder, tokenizer)
    import pyarrow.parquet as pq

    documents = pq.read_table(folder / DOCUMENTS).to_pydict()
    if settings.packing == "eos":
        _refuse_end_of_text(documents, tokenizer)
    return TokenCache(
        folder=folder,
        tokens=np.memmap(folder / TOKENS, dtype=tokenizer.dtype.newbyteorder("<"), mode="r"),
        offsets=np.load(folder / OFFSETS),
        document_ids=tuple(documents["id"]),
        text_hashes=tuple(documents["text_hash"]),
        text_bytes=np.asarray(documents["text_bytes"], np.int64),
        splits=tuple(documents["split"]),
        tokenizer=tokenizer,
        packing=settings.packing,
        content_hash=content_hash,
    )


def _verify(folder: Path, tokenizer: Tokenizer) -> None:
    try:
        sidecar = json.loads((folder / SIDECAR).read_text("utf-8"))
        size = (folder / TOKENS).stat().st_size
        if size != sidecar["tokens"] * tokenizer.dtype.itemsize:
            raise _Damaged(f"{TOKENS} has {size} bytes for {sidecar['tokens']} tokens")
        for name in (TOKENS, OFFSETS, DOCUMENTS):
            if _file_hash(folder / name) != sidecar["sha256"][name]:
                raise _Damaged(f"{name} does not have its recorded SHA-256")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _Damaged(f"{type(error).__name__}: {error}") from error


def _refuse_end_of_text(documents: dict[str, list[Any]], tokenizer: Tokenizer) -> None:
    for name, holds in zip(documents["id"], documents["holds_end_of_text"], strict=True):
        if holds:
            raise StorageError(
                f"document {name!r} contains the token {tokenizer.end_of_text} ({tokenizer.end_of_text_name}), which "
                "ends a text under data.packing=eos; remove it from the text or write data.packing=document"
            )


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
