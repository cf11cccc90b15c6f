import logging
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from storage.errors import StorageError
from storage.settings import DataSettings
from storage.streams import open_streams
from storage.token_cache import TokenCache, open_token_cache
from storage.windows import evaluation_windows
from tests.tokenizer_makers import END_OF_TEXT, make_tokenizer

TEXTS = ["alpha", "beta beta", "gamma é", "", "beta beta", "delta"]


@pytest.fixture
def settings(tmp_path: Path) -> DataSettings:
    return settings_of(tmp_path / "texts", TEXTS)


def settings_of(folder: Path, contents: list[str], packing: str = "document") -> DataSettings:
    folder.mkdir()
    for index, text in enumerate(contents):
        (folder / f"{index}.jsonl").write_text(f'{{"text": "{text}"}}\n{{"text": "tail {index}"}}\n')
    return DataSettings(files=(f"{folder}/*.jsonl",), packing=packing)


def cache_folder(root: Path) -> Path:
    return next(path for path in root.iterdir() if path.is_dir())


def document(cache: TokenCache, index: int) -> bytes:
    return bytes(cache.tokens[cache.offsets[index] : cache.offsets[index + 1]].astype(np.uint8))


def test_cache_holds_every_document_in_order(settings: DataSettings, tmp_path: Path) -> None:
    cache = open_token_cache(settings, tmp_path / "cache")
    expected = [text for index, first in enumerate(TEXTS) for text in (first, f"tail {index}")]
    assert [document(cache, index).decode() for index in range(len(expected))] == expected
    assert cache.document_ids[:3] == ("0.jsonl#0", "0.jsonl#1", "1.jsonl#0")
    assert cache.tokens.dtype == np.uint16 and isinstance(cache.tokens, np.memmap)
    assert cache.offsets.dtype == np.int64 and cache.offsets[-1] == len(cache.tokens)


def test_equal_texts_are_in_one_split_and_every_document_in_one(settings: DataSettings, tmp_path: Path) -> None:
    cache = open_token_cache(settings, tmp_path / "cache")
    assert cache.splits[2] == cache.splits[8]
    found = np.concatenate([cache.documents_of(split) for split in ("train", "select", "report")])
    assert sorted(found.tolist()) == list(range(12))
    with pytest.raises(StorageError, match="split 'apart' holds no document; write report or select or train"):
        cache.documents_of("apart")


def test_shipped_splits_are_the_recorded_ones(tmp_path: Path) -> None:
    cache = open_token_cache(DataSettings(), tmp_path)
    sizes = np.diff(cache.offsets)
    found = {
        split: (len(cache.documents_of(split)), int(sizes[cache.documents_of(split)].sum()))
        for split in ("train", "select", "report", "apart")
    }
    assert found == {
        "train": (146, 7_314_656),
        "select": (39, 1_644_933),
        "report": (48, 1_801_823),
        "apart": (1, 1_204_997),
    }


def test_second_opening_reads_what_the_first_wrote(settings: DataSettings, tmp_path: Path) -> None:
    first = open_token_cache(settings, tmp_path / "cache")
    written = (first.folder / "tokens.bin").stat().st_mtime_ns
    second = open_token_cache(DataSettings(files=settings.files, packing="eos"), tmp_path / "cache")
    assert (second.folder / "tokens.bin").stat().st_mtime_ns == written
    assert second.packing == "eos" and second.text_hashes == first.text_hashes


def test_changed_content_has_a_cache_of_its_own(settings: DataSettings, tmp_path: Path) -> None:
    first = open_token_cache(settings, tmp_path / "cache")
    (tmp_path / "texts" / "0.jsonl").write_text('{"text": "changed"}\n')
    second = open_token_cache(settings, tmp_path / "cache")
    assert second.folder != first.folder and document(second, 0) == b"changed"


def test_a_tokenizer_file_has_a_cache_of_its_own_whatever_its_path(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "texts", TEXTS)
    trained = make_tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "copy.json").write_bytes(trained.read_bytes())
    folders = [
        open_token_cache(DataSettings(files=settings.files, tokenizer=name), tmp_path / "cache").folder
        for name in ("bytes", str(trained), str(tmp_path / "copy.json"))
    ]
    assert folders[0] != folders[1] == folders[2]


def test_a_cache_of_a_tokenizer_file_decodes_to_the_texts_and_knows_their_bytes(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "texts", TEXTS)
    trained = make_tokenizer(tmp_path / "tokenizer.json")
    cache = open_token_cache(DataSettings(files=settings.files, tokenizer=str(trained)), tmp_path / "cache")
    expected = [text for index, first in enumerate(TEXTS) for text in (first, f"tail {index}")]
    pieces = [cache.tokens[begin:end] for begin, end in zip(cache.offsets, cache.offsets[1:], strict=False)]
    assert [cache.tokenizer.decode(piece) for piece in pieces] == expected
    assert cache.text_bytes.tolist() == [len(text.encode()) for text in expected]


def test_a_large_vocabulary_is_kept_in_four_bytes(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "texts", TEXTS)
    word = {"alpha": 0, "beta": 70_000}
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(word, unk_token="alpha"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    library.save(str(tmp_path / "words.json"))
    settings = DataSettings(files=settings.files, tokenizer=str(tmp_path / "words.json"))
    for _ in ("built", "read again"):
        cache = open_token_cache(settings, tmp_path / "cache")
        assert (
            cache.tokens.dtype == np.uint32
            and cache.tokens[cache.offsets[2] : cache.offsets[3]].tolist() == [70_000] * 2
        )


@pytest.mark.parametrize("packing", ["document", "eos"])
def test_bytes_per_token_are_those_of_the_split_read(tmp_path: Path, packing: str) -> None:
    texts = [f"speech {number} to the Congress of the United States" for number in range(40)]
    settings = settings_of(tmp_path / "texts", texts)
    trained = make_tokenizer(tmp_path / "tokenizer.json")
    settings = DataSettings(files=settings.files, tokenizer=str(trained), packing=packing)
    cache = open_token_cache(settings, tmp_path / "cache")
    chosen = cache.documents_of("report")
    tokens = int(np.diff(cache.offsets)[chosen].sum()) + (len(chosen) - 1 if packing == "eos" else 0)
    expected = int(cache.text_bytes[chosen].sum()) / tokens
    assert open_streams(cache, "report").bytes_per_token == expected > 1
    window = evaluation_windows(cache, "report", 3, 2)[1]
    assert (window.unit, window.bytes_per_token) == ("tokens", expected)


def test_bytes_have_one_byte_per_token(settings: DataSettings, tmp_path: Path) -> None:
    assert open_streams(open_token_cache(settings, tmp_path / "cache"), "train").bytes_per_token == 1.0


def test_end_of_text_in_a_document_is_named_under_eos_packing(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "texts", ["a", f"b{END_OF_TEXT}b", "c"])
    trained = str(make_tokenizer(tmp_path / "tokenizer.json"))
    open_token_cache(DataSettings(files=settings.files, tokenizer=trained), tmp_path / "cache")
    with pytest.raises(StorageError, match=r"document '1.jsonl#0' contains the token 0 \(<\|endoftext\|>\)"):
        open_token_cache(DataSettings(files=settings.files, tokenizer=trained, packing="eos"), tmp_path / "cache")


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 2)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("tokens.bin", truncate),
        ("tokens.bin", flip),
        ("tokens.bin", Path.unlink),
        ("offsets.npy", flip),
        ("documents.parquet", flip),
        ("cache.json", truncate),
        ("cache.json", lambda path: path.write_text("[]")),
        ("cache.json", Path.unlink),
    ],
)
def test_damaged_cache_is_built_again_with_a_warning(
    settings: DataSettings,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    name: str,
    damage: Callable[[Path], object],
) -> None:
    expected = np.array(open_token_cache(settings, tmp_path / "cache").tokens)
    damage(cache_folder(tmp_path / "cache") / name)
    with caplog.at_level(logging.WARNING):
        cache = open_token_cache(settings, tmp_path / "cache")
    assert "is damaged" in caplog.text
    assert np.array_equal(cache.tokens, expected)
    assert len([path for path in (tmp_path / "cache").iterdir() if path.is_dir()]) == 1


def test_failed_building_leaves_no_folder(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "texts", ["fine", "fine too"])
    (tmp_path / "texts" / "9.jsonl").write_text('{"text": 5}\n')
    with pytest.raises(StorageError, match="of type int"):
        open_token_cache(settings, tmp_path / "cache")
    assert [path for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []


def test_one_document_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("one long document " * 100)
    with pytest.raises(StorageError, match="holds 1 distinct .* would be empty; give at least three"):
        open_token_cache(DataSettings(files=(str(tmp_path / "book.txt"),)), tmp_path / "cache")


def test_nul_is_refused_under_eos_packing_only(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "texts", ["a", "b\\u0000b", "c"])
    assert document(open_token_cache(settings, tmp_path / "cache"), 2) == b"b\0b"
    with pytest.raises(StorageError, match=r"document '1.jsonl#0' contains the token 0 \(NUL\)"):
        open_token_cache(DataSettings(files=settings.files, packing="eos"), tmp_path / "cache")


def test_root_that_cannot_be_written_is_named(settings: DataSettings, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file cannot be written .*; choose another folder"):
        open_token_cache(settings, tmp_path / "file")


def _open_in_process(root: Path, barrier: object, results: object) -> None:
    barrier.wait()  # type: ignore[attr-defined]
    cache = open_token_cache(DataSettings(), root)
    # Had each built one, the files opened would not be the same.
    inode = (cache.folder / "tokens.bin").stat().st_ino
    results.put((str(cache.folder), inode, int(cache.tokens.sum()), len(cache.tokens)))  # type: ignore[attr-defined]


def test_two_processes_that_build_at_once_get_one_whole_cache(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=_open_in_process, args=(tmp_path, barrier, results)) for _ in range(2)]
    for process in processes:
        process.start()
    found = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(timeout=60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert found[0] == found[1] and found[0][3] == 11_966_409
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [Path(found[0][0]).name]
