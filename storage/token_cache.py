"""The token cache: all documents as one flat file of tokens, built once and shared by every trial.

A cache is a folder `<root>/<key>`, where the key hashes content, file names, tokenizer content and format version:

    tokens.bin         uint16 (uint32 for more than 65,536 entries), little-endian, the documents one after the other,
                       nothing between them
    offsets.npy        int64 (D + 1,), document d is tokens[offsets[d] : offsets[d + 1]]
    documents.parquet  id, SHA-256 of the text, its UTF-8 bytes, split, whether it holds the end-of-text token
    cache.json         format version, tokenizer, dtype, content hash, counts, SHA-256 of the three files

It is built in a folder beside, flushed, and renamed into place under a lock, so that two processes that want it at
once get one whole cache. A dataset that is streamed goes into shards first (storage.token_shards), so that a build that
was interrupted goes on. Packing is not in it: end-of-text tokens are put in when the text is read (storage.streams).
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout

from storage.cache_building import (
    DOCUMENTS,
    FORMAT_VERSION,
    OFFSETS,
    SIDECAR,
    TOKENS,
    Recipe,
    build_cache,
    file_hash,
)
from storage.documents import check_files, data_content_hash, short_names
from storage.errors import StorageError
from storage.hub import pinned_data
from storage.settings import DataSettings
from storage.token_shards import SHARD_TOKENS
from storage.tokens import Tokenizer, Tokens, check_tokenizer

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


def open_token_cache(
    settings: DataSettings,
    root: str | os.PathLike[str],
    *,
    say: Callable[[str], None] = _log.info,
    shard_tokens: int = SHARD_TOKENS,
) -> TokenCache:
    """Open the cache of `settings` below `data.cache`, or else the folder `root`, building it if missing or damaged.

    What building streamed text has done is said to `say`, each time after `shard_tokens` tokens. Raises StorageError
    for text or a tokenizer that cannot be used, fewer than three distinct documents, a document with the end-of-text
    token under `eos` packing, a root that cannot be written, and a lock that is held for an hour.
    """
    settings = pinned_data(settings)
    tokenizer = check_tokenizer(settings)
    content_hash = data_content_hash(settings)
    folder = cache_folder(settings, root, content_hash)
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
        recipe = Recipe(settings=settings, tokenizer=tokenizer, content_hash=content_hash)
        build_cache(folder, recipe, shard_tokens=shard_tokens, say=say)
        return _load(folder, settings, tokenizer, content_hash)


def cache_folder(settings: DataSettings, root: str | os.PathLike[str], content_hash: str) -> Path:
    """Where the cache of these settings lies, whether or not it has been built."""
    # Names enter because document ids come from them; a renamed file must not show its old name in a table.
    names = [Path(settings.dataset).name] if settings.dataset else short_names(check_files(settings))
    key = json.dumps([FORMAT_VERSION, content_hash, names])
    parent = Path(settings.cache or root).expanduser().absolute()
    return parent / hashlib.sha256(key.encode()).hexdigest()[:16]


def is_built(settings: DataSettings, root: str | os.PathLike[str]) -> bool:
    """Whether the cache of settings that are known without the network is there; its content is not verified."""
    return (cache_folder(settings, root, data_content_hash(settings)) / SIDECAR).is_file()


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    path = folder.with_name(folder.name + ".lock")
    lock = FileLock(path, timeout=LOCK_TIMEOUT_SECONDS)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise StorageError(
            f"token cache {folder}: another process has been building it for an hour; wait for it, or end it"
        ) from error
    except OSError as error:
        raise StorageError(
            f"token cache: {folder.parent} cannot be written ({error.strerror}); choose another folder"
        ) from error
    try:
        yield
    finally:
        lock.release()


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
            if file_hash(folder / name) != sidecar["sha256"][name]:
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
