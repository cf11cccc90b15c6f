from collections.abc import Callable

import numpy as np
import pytest

from storage.errors import StorageError
from storage.streams import open_streams
from storage.token_cache import TokenCache

MakeCache = Callable[..., TokenCache]


def text(cache: TokenCache, index: int) -> list[int]:
    return cache.tokens[cache.offsets[index] : cache.offsets[index + 1]].tolist()


def test_document_packing_has_a_stream_per_document_with_text(make_cache: MakeCache) -> None:
    cache = make_cache([3, 0, 2, 4], splits=["train", "train", "report", "train"])
    streams = open_streams(cache, "train")
    assert streams.lengths.tolist() == [3, 4] and streams.empty_documents == 1
    assert streams.read(1, np.arange(4)).tolist() == text(cache, 3)


def test_eos_packing_joins_the_split_with_one_token_between_documents(make_cache: MakeCache) -> None:
    cache = make_cache([3, 0, 2, 4], packing="eos", splits=["train", "train", "report", "train"])
    streams = open_streams(cache, "train")
    assert streams.lengths.tolist() == [8]
    assert streams.read(0, np.arange(8)).tolist() == [*text(cache, 0), 0, *text(cache, 3)]
    assert streams.document_slots(0, np.arange(8)).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert streams.document_start([0, 1]).tolist() == [0, 4]


@pytest.mark.parametrize("packing", ["document", "eos"])
@pytest.mark.parametrize("position", [-1, 3])
def test_position_outside_its_stream_is_refused(make_cache: MakeCache, packing: str, position: int) -> None:
    streams = open_streams(make_cache([3], packing=packing), "train")
    with pytest.raises(IndexError, match="outside its stream"):
        streams.read(0, position)


def test_split_without_text_is_refused(make_cache: MakeCache) -> None:
    with pytest.raises(StorageError, match="empty documents only"):
        open_streams(make_cache([0, 0]), "train")
