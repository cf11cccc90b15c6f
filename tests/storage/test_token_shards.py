import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from storage import token_shards
from storage.errors import StorageError
from storage.hub_text import HubText
from storage.settings import DataSettings
from storage.splits import split_of, text_hash
from storage.token_cache import DOCUMENTS, OFFSETS, TOKENS, TokenCache, open_token_cache
from tests.storage.dataset_makers import make_pile, pile_texts
from tests.tokenizer_makers import END_OF_TEXT, make_tokenizer

TEXTS = pile_texts(400)
SIZES = [len(text) for text in TEXTS]


@pytest.fixture(scope="module")
def pile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pile(tmp_path_factory.mktemp("shards") / "pile", TEXTS)


def content(cache: TokenCache) -> list[bytes]:
    return [(cache.folder / name).read_bytes() for name in (TOKENS, OFFSETS, DOCUMENTS)]


def test_a_cache_of_streamed_text_holds_every_document_with_its_row(pile: Path, tmp_path: Path) -> None:
    cache = open_token_cache(DataSettings(dataset=str(pile)), tmp_path)
    assert bytes(cache.tokens.astype(np.uint8)).decode() == "".join(TEXTS)
    assert np.diff(cache.offsets).tolist() == SIZES == cache.text_bytes.tolist()
    assert cache.document_ids[:2] == ("pile#0", "pile#1") and len(cache.document_ids) == 400
    assert cache.text_hashes[7] == text_hash(TEXTS[7])


def test_splits_are_those_of_the_texts_and_disjoint(pile: Path, tmp_path: Path) -> None:
    cache = open_token_cache(DataSettings(dataset=str(pile)), tmp_path)
    assert all(found == split_of(text_hash(text)) for found, text in zip(cache.splits, TEXTS, strict=True) if text)
    assert {"train", "select", "report"} == set(cache.splits)


@pytest.mark.parametrize("wanted", [1, sum(SIZES[:64]), sum(SIZES[:64]) + 1, sum(SIZES[:200]) - 1])
def test_documents_are_taken_until_they_hold_the_tokens_asked_for(pile: Path, tmp_path: Path, wanted: int) -> None:
    settings = DataSettings(dataset=str(pile), max_tokens=wanted)
    _, reached = token_shards.gather_shards(tmp_path, settings, token_shards_tokenizer(), say=lambda line: None)
    totals = np.cumsum(SIZES)
    assert reached.tokens == totals[reached.documents - 1] >= wanted
    assert reached.documents == 1 or totals[reached.documents - 2] < wanted


def token_shards_tokenizer() -> token_shards.Tokenizer:
    from storage.tokens import BYTES

    return BYTES


def test_shards_of_any_size_give_the_same_cache(pile: Path, tmp_path: Path) -> None:
    settings = DataSettings(dataset=str(pile), max_tokens=10_000)
    caches = [open_token_cache(settings, tmp_path / str(size), shard_tokens=size) for size in (1, 3_000, 5_000, 10**9)]
    assert all(content(cache) == content(caches[0]) for cache in caches)
    assert [path.name for path in caches[0].folder.parent.iterdir() if path.is_dir()] == [caches[0].folder.name]


class Stop(Exception):
    pass


def stop_after(count: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Make the stream break before it has been read so many times; returns how often it was read."""
    reads = 0
    take = HubText.take

    def counted(self: HubText, number: int) -> list[str]:
        nonlocal reads
        reads += 1
        if reads > count:
            raise Stop
        return take(self, number)

    monkeypatch.setattr(HubText, "take", counted)
    return lambda: reads


@pytest.mark.parametrize("stops", [[1], [3], [2, 1, 2]])
def test_an_interrupted_build_goes_on_from_the_last_whole_shard(
    pile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops: list[int]
) -> None:
    settings = DataSettings(dataset=str(pile))
    whole = open_token_cache(settings, tmp_path / "whole")
    for stop in stops:
        with monkeypatch.context() as patch, pytest.raises(Stop):
            stop_after(stop, patch)
            open_token_cache(settings, tmp_path / "broken", shard_tokens=1)
    with monkeypatch.context() as patch:
        reads = stop_after(99, patch)
        said: list[str] = []
        again = open_token_cache(settings, tmp_path / "broken", shard_tokens=1, say=said.append)
    # 400 rows are 7 batches, here of one shard each.
    assert content(again) == content(whole) and reads() == 7 - sum(stops)
    assert said[0].startswith(f"{sum(stops)} shards are here already: ")


def test_a_damaged_shard_and_what_follows_it_are_read_again(
    pile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = DataSettings(dataset=str(pile))
    whole = open_token_cache(settings, tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(Stop):
        stop_after(5, patch)
        open_token_cache(settings, tmp_path / "broken", shard_tokens=1)
    shards = sorted((tmp_path / "broken").glob("*.shards/*.parquet"))
    assert len(shards) == 5
    damaged = bytearray(shards[2].read_bytes())
    damaged[len(damaged) // 3] ^= 0xFF
    shards[2].write_bytes(damaged)
    with caplog.at_level(logging.WARNING), monkeypatch.context() as patch:
        reads = stop_after(99, patch)
        again = open_token_cache(settings, tmp_path / "broken", shard_tokens=1)
    assert content(again) == content(whole) and reads() == 5 and "shard-00002.parquet is damaged" in caplog.text


def test_documents_with_the_end_of_text_token_are_left_out_and_counted(tmp_path: Path) -> None:
    texts = [*TEXTS[:70], f"a{END_OF_TEXT}b", *TEXTS[70:90]]
    trained = str(make_tokenizer(tmp_path / "tokenizer.json"))
    settings = DataSettings(dataset=str(make_pile(tmp_path / "set", texts)), tokenizer=trained, packing="eos")
    cache = open_token_cache(settings, tmp_path / "cache")
    assert len(cache.document_ids) == 90 and "set#70" not in cache.document_ids and "set#71" in cache.document_ids
    assert '"left_out": 1' in (cache.folder / "cache.json").read_text()
    pieces = [cache.tokens[begin:end] for begin, end in zip(cache.offsets, cache.offsets[1:], strict=False)]
    assert [cache.tokenizer.decode(piece) for piece in pieces] == TEXTS[:90]


def test_a_split_that_is_shorter_than_asked_for_is_said(pile: Path, tmp_path: Path) -> None:
    said: list[str] = []
    open_token_cache(DataSettings(dataset=str(pile), max_tokens=10**6), tmp_path, say=said.append)
    assert said[-1] == "the split train ends below data.max_tokens=1,000,000"


def test_too_few_documents_name_the_dataset(tmp_path: Path) -> None:
    settings = DataSettings(dataset=str(make_pile(tmp_path / "set", ["one", "two"], files=1)))
    with pytest.raises(StorageError, match=r"data.dataset holds 2 distinct non-empty document\(s\)"):
        open_token_cache(settings, tmp_path / "cache")


def test_a_shared_folder_takes_the_cache(pile: Path, tmp_path: Path) -> None:
    settings = DataSettings(dataset=str(pile), cache=str(tmp_path / "shared"))
    cache = open_token_cache(settings, tmp_path / "own")
    assert cache.folder.parent == tmp_path / "shared" and not (tmp_path / "own").exists()
