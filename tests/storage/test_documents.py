import hashlib
import importlib.resources
import lzma
import os
import subprocess
import sys
from pathlib import Path

import pytest

from storage.documents import check_files, data_content_hash, read_documents
from storage.errors import StorageError
from storage.settings import DataSettings


def test_shipped_corpus_is_the_one_its_provenance_describes() -> None:
    corpus = importlib.resources.files("storage") / "corpus"
    packed = (corpus / "quickstart_cc0.jsonl.xz").read_bytes()
    provenance = (corpus / "PROVENANCE.txt").read_text()
    assert hashlib.sha256(packed).hexdigest() in provenance
    assert f"{len(packed):,} bytes ({len(lzma.decompress(packed)):,} bytes unpacked)" in provenance
    licence = (corpus / "LICENSE-quickstart.txt").read_text()
    assert "CC0-1.0" in licence and "PDDL-1.0" in licence


def test_shipped_corpus_holds_233_speeches_and_one_novel_apart() -> None:
    documents = list(read_documents(DataSettings()))
    assert len({document.id for document in documents}) == 234
    assert [document.id for document in documents if document.apart] == ["moby_dick"]
    assert documents[0].text.startswith("CHAPTER 1. Loomings.\n\nCall me Ishmael.")
    assert not any("\0" in document.text for document in documents)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.txt", None, "there is no file .*missing.txt"),
        ("empty.txt", b"", "empty.txt is empty"),
        ("book.pdf", b"x", "book.pdf has no known ending; the known ones are .txt, .jsonl"),
        ("*.nothing", None, "no file matches '.*nothing'"),
        ("", None, "is a folder; write the files in it"),
    ],
)
def test_check_files_refuses(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(StorageError, match=message):
        check_files(DataSettings(files=(f"{tmp_path}/{name}",)))


def test_check_files_expands_globs_once_and_in_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.JSONL", "x[1].txt"):
        (tmp_path / name).write_text("text")
    settings = DataSettings(files=(f"{tmp_path}/c*", f"{tmp_path}/x[1].txt", f"{tmp_path}/*.txt"))
    assert [path.name for path in check_files(settings)] == ["c.JSONL", "x[1].txt", "a.txt", "b.txt"]


def test_content_hash_follows_content_order_and_column_but_not_places(tmp_path: Path) -> None:
    def content_hash(*texts: str, folder: str, field: str = "text", kind: str = "txt") -> str:
        paths = [tmp_path / folder / f"{number}.{kind}" for number in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return data_content_hash(DataSettings(files=tuple(map(str, paths)), field=field))

    first = content_hash("one", "two", folder="a")
    assert content_hash("one", "two", folder="b", field="unused") == first
    others = [
        content_hash("two", "one", folder="c"),
        content_hash("onet", "wo", folder="d"),
        content_hash("one", "two", folder="e", kind="jsonl"),
        content_hash("one", "two", folder="e", kind="jsonl", field="body"),
        data_content_hash(DataSettings()),
    ]
    assert len({first, *others}) == 6


def test_checks_for_a_dry_run_import_no_heavy_library(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    code = (
        "import sys; from storage.documents import check_files, data_content_hash;"
        "from storage.settings import DataSettings; import storage.token_cache, storage.curve_files;"
        f"settings = DataSettings(files=({str(tmp_path / 'a.txt')!r},)); check_files(settings);"
        "data_content_hash(settings); data_content_hash(DataSettings());"
        "print([name for name in ('torch', 'ray', 'mlflow', 'pandas', 'datasets', 'pyarrow') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": "."}
    )
    assert result.stdout.strip() == "[]"
