"""The documents of a run: the shipped corpus, or the user's own files; cheap checks and the hash of their content.

The shipped corpus (storage/corpus, CC0) holds 233 State of the Union addresses and Moby Dick. It is found as package
data, so an installed copy works without a checkout. The user's files are read in `storage.user_files`, a dataset of the
Hugging Face Hub in `storage.hub_text`.
"""

import glob
import hashlib
import importlib.resources
import json
import lzma
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from io import BufferedReader
from pathlib import Path

from storage.errors import StorageError
from storage.hub import is_commit, is_folder
from storage.settings import BYTES_NAME, DataSettings
from storage.tokenizer_file import read_tokenizer_file

TEXT_ENDINGS = (".txt",)
JSON_ENDINGS = tuple(kind + packed for kind in (".jsonl", ".json") for packed in ("", ".zst", ".gz", ".xz"))
JSON_LINES_ENDINGS = tuple(known for known in JSON_ENDINGS if known.startswith(".jsonl"))
PARQUET_ENDINGS = (".parquet",)
ENDINGS = TEXT_ENDINGS + JSON_ENDINGS + PARQUET_ENDINGS

APART_DOCUMENT = "moby_dick"
"""The shipped document that is never trained on and reported apart: one novel among speeches."""


@dataclass(frozen=True)
class Document:
    """One text with its name. `apart` keeps it out of the hash split."""

    id: str
    text: str
    apart: bool = False


def read_documents(settings: DataSettings) -> Iterator[Document]:
    """Yield every document of the files or the corpus in order, one at a time.

    Raises StorageError for what cannot be read as text.
    """
    if settings.dataset:
        raise StorageError(f"data.dataset={settings.dataset} is streamed (storage.token_shards), not read as documents")
    if not settings.files:
        yield from _read_shipped_corpus()
        return
    from storage.user_files import read_user_files

    yield from read_user_files(check_files(settings), settings.field)


def _shipped_corpus() -> Traversable:
    return importlib.resources.files("storage") / "corpus" / "quickstart_cc0.jsonl.xz"


def _read_shipped_corpus() -> Iterator[Document]:
    with _shipped_corpus().open("rb") as packed, lzma.open(packed, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield Document(id=row["id"], text=row["text"], apart=row["id"] == APART_DOCUMENT)


def check_files(settings: DataSettings) -> tuple[Path, ...]:
    """The files that `data.files` names, globs expanded, each once, in the order given (a glob's matches sorted).

    Checks that each exists, is a file, is not empty and has a known ending, without opening it; the empty tuple
    stands for the shipped corpus. Raises StorageError.
    """
    paths: dict[Path, Path] = {}
    for pattern in settings.files:
        for path in _expand(pattern):
            # Overlapping globs would read a file twice and so weigh it double.
            paths.setdefault(path.resolve(), path)
    for path in paths.values():
        _check_file(path)
    return tuple(paths.values())


def _expand(pattern: str) -> list[Path]:
    path = Path(pattern).expanduser()
    if path.exists() or not glob.has_magic(pattern):
        return [path]
    matches = sorted(Path(match) for match in glob.glob(str(path), recursive=True) if not Path(match).is_dir())
    if not matches:
        raise StorageError(
            f"data.files: no file matches {pattern!r}; write the path of a file or a glob that has matches"
        )
    return matches


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise StorageError(f"data.files: {path} is a folder; write the files in it, for example {path / '*.txt'}")
    if not path.is_file():
        raise StorageError(f"data.files: there is no file {path}; write the path of an existing file or a glob")
    if ending(path) is None:
        raise StorageError(f"data.files: {path} has no known ending; the known ones are {', '.join(ENDINGS)}")
    if path.stat().st_size == 0:
        raise StorageError(f"data.files: {path} is empty; leave it out or fill it")


def ending(path: Path) -> str | None:
    """The known ending of a file name, compression included (".jsonl.zst"), or None."""
    name = path.name.lower()
    return next((known for known in ENDINGS if name.endswith(known)), None)


def short_names(paths: Sequence[Path]) -> list[str]:
    """Names for document ids: file names, or, if two folders have one of a name, paths from the folder above them."""
    names = [path.name for path in paths]
    if len(set(names)) == len(names):
        return names
    common = os.path.commonpath([path.resolve().parent for path in paths])
    return [Path(os.path.relpath(path.resolve(), common)).as_posix() for path in paths]


def data_content_hash(settings: DataSettings) -> str:
    """SHA-256 (hex) of what the tokens come from: for the identity of a trial and the token cache.

    That is the bytes of the documents' files and of the tokenizer's, if it has one. Names and places of files do not
    enter, the order of the documents' does, as does `data.field` where a file has columns. Nothing is decoded: the cost
    is one reading of the files. A dataset of the Hub is known by its name and its commit, which must be full, and by
    how much of it is taken; nothing of it is read. Raises StorageError as `check_files` and `read_tokenizer_file` do.
    """
    digest = hashlib.sha256()
    if settings.dataset:
        digest.update(b"dataset\0" + _dataset_key(settings).encode())
    elif not settings.files:
        digest.update(b"shipped\0" + hashlib.sha256(_shipped_corpus().read_bytes()).digest())
    for path in check_files(settings):
        column = "" if ending(path) in TEXT_ENDINGS else settings.field
        digest.update(f"{ending(path)}\0{column}\0".encode() + _file_digest(path))
    if settings.tokenizer != BYTES_NAME:
        digest.update(b"tokenizer\0" + bytes.fromhex(read_tokenizer_file(settings.tokenizer).sha256))
    return digest.hexdigest()


def _dataset_key(settings: DataSettings) -> str:
    if is_folder(settings.dataset):
        content = _folder_hash(Path(settings.dataset).expanduser())
    elif is_commit(settings.revision):
        content = f"{settings.dataset}@{settings.revision}"
    else:
        raise StorageError(
            f"data.revision of {settings.dataset} is {settings.revision or 'main'!r}, whose content may change; write "
            "a full commit"
        )
    taken = (settings.dataset_config, settings.dataset_split, settings.field, settings.max_tokens)
    return json.dumps([content, *taken])


def _folder_hash(folder: Path) -> str:
    """SHA-256 of the files of a folder, their names below it included: names say which split a file belongs to."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder)
        if not any(part.startswith(".") for part in name.parts):
            digest.update(f"{name.as_posix()}\0".encode() + _file_digest(path))
    return digest.hexdigest()


def _file_digest(path: Path) -> bytes:
    with _open(path) as file:
        return hashlib.file_digest(file, "sha256").digest()


def _open(path: Path) -> BufferedReader:
    try:
        return path.open("rb")
    except OSError as error:
        raise StorageError(f"the text {path} cannot be opened ({error.strerror}); check its permissions") from error
