import gzip
import json
import lzma
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from storage.documents import Document, read_documents
from storage.errors import StorageError
from storage.settings import DataSettings

ROWS: list[dict[str, Any]] = [{"text": "first\r\nline", "n": 1}, {"text": "zweite \N{SNOWMAN}", "n": 2}]


def read(*paths: Path | str, field: str = "text") -> list[Document]:
    return list(read_documents(DataSettings(files=tuple(map(str, paths)), field=field)))


def texts(documents: Sequence[Document]) -> list[str]:
    return [document.text for document in documents]


def json_lines(rows: Sequence[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def zstandard(content: bytes) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as out:
        out.write(content)
    return sink.getvalue().to_pybytes()


def test_text_file_is_one_document_with_its_line_breaks(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    (tmp_path / "b.txt").write_text("three", encoding="utf-8-sig")
    documents = read(tmp_path / "*.txt")
    assert documents == [Document("a.txt#0", "one\n\ntwo\n"), Document("b.txt#0", "three")]


@pytest.mark.parametrize(
    ("ending", "pack"),
    [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress), (".zst", zstandard)],
    ids=["plain", "gz", "xz", "zst"],
)
@pytest.mark.parametrize("kind", [".jsonl", ".json"])
def test_json_lines_give_a_document_per_row(
    tmp_path: Path, kind: str, ending: str, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / f"rows{kind}{ending}"
    path.write_bytes(pack(json_lines(ROWS)))
    assert read(path) == [Document(f"{path.name}#{index}", row["text"]) for index, row in enumerate(ROWS)]


def test_json_array_and_parquet_give_a_document_per_row(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "a.json").write_text(json.dumps(ROWS))
    pq.write_table(pa.table({"body": [row["text"] for row in ROWS], "id": [7, 8]}), tmp_path / "b.parquet")
    assert texts(read(tmp_path / "a.json")) == [row["text"] for row in ROWS]
    documents = read(tmp_path / "b.parquet", field="body")
    assert documents == [Document(f"b.parquet:{7 + index}", row["text"]) for index, row in enumerate(ROWS)]


def test_json_lines_may_differ_in_their_other_columns_and_have_blank_lines(tmp_path: Path) -> None:
    rows = [{"text": "x" * 50_000, "meta": index} for index in range(250)]
    rows += [{"meta": {"a": "b"}, "late": True, "text": "last"}]
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + json_lines(rows) + b"\n\n")
    assert texts(read(tmp_path / "a.jsonl")) == [row["text"] for row in rows]


def test_name_with_glob_characters_is_read_as_a_name(tmp_path: Path) -> None:
    (tmp_path / "x[1]*.jsonl").write_bytes(json_lines(ROWS))
    assert len(read(tmp_path / "x[1]*.jsonl")) == 2


def test_files_of_one_name_in_two_folders_have_ids_of_their_own(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.txt").write_text(folder)
    assert [document.id for document in read(tmp_path / "*" / "x.txt")] == ["a/x.txt#0", "b/x.txt#0"]


def test_missing_column_names_the_nearest_and_all(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines([{"contents": "x", "url": "y"}]))
    with pytest.raises(
        StorageError, match="no column 'content' in row 0; its columns are contents, url: write data.field=contents"
    ):
        read(tmp_path / "a.jsonl", field="content")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "a"}, {"text": None}], r"row 1 of .* is empty \(null\) in the column 'text'"),
        ([{"text": "a"}, {"text": 5}], "row 1 of .* is of type int in the column 'text'"),
        ([{"text": "a"}, {"other": "b"}], "a.jsonl has no column 'text' in row 1; its columns are other"),
        ([{"text": ["a"]}], "row 0 of .* is of type list"),
        (["a"], r"cannot be read as .jsonl \(line 1 is no JSON object\)"),
        ([{"text": ""}], "holds no text"),
        ([{"id": 1, "text": "a"}, {"id": 1, "text": "b"}], "two documents .* have the id 'a.jsonl:1'"),
    ],
    ids=["null", "number", "left out", "list", "bare string", "no text", "repeated id"],
)
def test_rows_that_hold_no_text_are_refused(tmp_path: Path, rows: list[Any], message: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines(rows))
    with pytest.raises(StorageError, match=message):
        read(tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", b"caf\xe9"),
        ("a.jsonl", b'{"text": "a"}\nnot json\n'),
        ("a.jsonl.gz", b"not gzip"),
        ("a.json.xz", b"not xz"),
        ("a.jsonl.zst", b"not zstandard"),
        ("a.parquet", b"PAR1 not parquet"),
    ],
)
def test_damaged_files_are_refused_in_one_sentence(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(StorageError, match=f"{name} cannot be read as {name[1:]} .*; check its ending") as caught:
        read(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_reading_uses_no_network_and_no_cache_in_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was asked for")

    (tmp_path / "a.jsonl").write_bytes(json_lines(ROWS))
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    before = os.environ.get("HF_DATASETS_OFFLINE")
    assert len(read(tmp_path / "a.jsonl")) == 2
    assert os.listdir(tmp_path / "home") == []
    assert os.environ.get("HF_DATASETS_OFFLINE") == before
