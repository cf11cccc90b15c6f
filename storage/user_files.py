"""The user's own text through Hugging Face `datasets`: .txt, JSON lines (also compressed) and parquet.

Files are streamed one after the other, so that neither memory nor disk holds a second copy: `datasets` writes nothing
but an empty folder, and that goes to a temporary place. Its readers of local files use no network. In .txt files line
ends become "\\n" and a byte order mark is dropped; nothing else changes.
"""

import difflib
import glob
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from storage.documents import JSON_ENDINGS, JSON_LINES_ENDINGS, TEXT_ENDINGS, Document, ending, short_names
from storage.errors import StorageError


def read_user_files(paths: Sequence[Path], field: str) -> Iterator[Document]:
    """Yield the documents of `paths` in order: a .txt file is one document, a row of any other file is one.

    A document's id is the file's name, "#" and the row's index from 0, or ":" and the value of the column `id` where
    the file has one. Raises StorageError for unreadable files, missing columns, values that are not text, repeated
    ids and files without any text.
    """
    seen: set[str] = set()
    for path, name in zip(paths, short_names(paths), strict=True):
        found_text = False
        for document in _read_file(path, name, field):
            if document.id in seen:
                raise StorageError(
                    f"data.files: two documents of {path} have the id {document.id!r}; make the column 'id' unique "
                    "or rename it"
                )
            seen.add(document.id)
            found_text = found_text or bool(document.text)
            yield document
        if not found_text:
            raise StorageError(f"data.files: {path} holds no text; leave it out or fill it")


def _read_file(path: Path, name: str, field: str) -> Iterator[Document]:
    is_text = ending(path) in TEXT_ENDINGS
    column = "text" if is_text else field
    for index, row in enumerate(_rows(path)):
        text = _text_of(row, column, path, index)
        named = not is_text and column != "id" and row.get("id") is not None
        yield Document(id=f"{name}:{row['id']}" if named else f"{name}#{index}", text=text)


def _text_of(row: dict[str, Any], column: str, path: Path, index: int) -> str:
    if column not in row:
        nearest = difflib.get_close_matches(column, row, n=1)
        suggestion = nearest[0] if nearest else next(iter(row), "NAME")
        raise StorageError(
            f"data.files: {path} has no column {column!r} in row {index}; its columns are {', '.join(sorted(row))}: "
            f"write data.field={suggestion}"
        )
    value = row[column]
    if not isinstance(value, str):
        found = "empty (null)" if value is None else f"of type {type(value).__name__}"
        raise StorageError(
            f"data.files: row {index} of {path} is {found} in the column {column!r}; every row must hold text there"
        )
    return value


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="datasets-") as cache:
        try:
            rows = _open_stream(path, cache)
            yield from _parsed_lines(rows) if ending(path) in JSON_LINES_ENDINGS else rows
        # The readers raise whatever their parsers raise (Arrow, JSON, Unicode, lzma, zlib, zstandard errors).
        except Exception as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise StorageError(
                f"data.files: {path} cannot be read as {ending(path)} ({reason}); check its ending and its content"
            ) from error


def _parsed_lines(lines: Iterable[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """Rows of JSON lines; blank lines are passed over."""
    for number, line in enumerate(lines, start=1):
        if not line["text"].strip():
            continue
        row = json.loads(line["text"])
        if not isinstance(row, dict):
            raise ValueError(f"line {number} is no JSON object")
        yield row


def _open_stream(path: Path, cache: str) -> Any:
    datasets = _import_datasets()
    # `datasets` takes a path for a pattern; escaping keeps a name such as "a[1].txt" a name.
    name = glob.escape(str(path.resolve()))
    kind = ending(path)
    if kind in TEXT_ENDINGS:
        return datasets.IterableDataset.from_text(name, cache_dir=cache, sample_by="document", encoding="utf-8-sig")
    if kind in JSON_LINES_ENDINGS:
        # As lines: `from_json` fixes the columns by the first 10 MB, and stops at a later row that has one more.
        return datasets.IterableDataset.from_text(name, cache_dir=cache, sample_by="line", encoding="utf-8-sig")
    if kind in JSON_ENDINGS:
        return datasets.IterableDataset.from_json(name, cache_dir=cache, parse_agent_traces=False)
    return datasets.IterableDataset.from_parquet(name, cache_dir=cache)


def _import_datasets() -> Any:
    """Import `datasets` in its own offline mode, read at import; the Hub client of this process stays as it is."""
    before = os.environ.get("HF_DATASETS_OFFLINE")
    os.environ["HF_DATASETS_OFFLINE"] = "1"
    try:
        import datasets
    finally:
        if before is None:
            del os.environ["HF_DATASETS_OFFLINE"]
        else:
            os.environ["HF_DATASETS_OFFLINE"] = before
    return datasets
