from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from storage.errors import StorageError
from storage.token_cache import TokenCache
from storage.windows import EvaluationWindow, evaluation_windows

MakeCache = Callable[..., TokenCache]


def places(windows: list[EvaluationWindow]) -> list[tuple[str, int]]:
    return [(window.document_id, window.start) for window in windows]


def test_documents_come_in_hash_order_before_any_gets_a_second_window(make_cache: MakeCache) -> None:
    cache = make_cache([25, 9, 35, 11])
    by_hash = sorted([0, 2, 3], key=lambda index: cache.text_hashes[index])
    found = places(evaluation_windows(cache, "train", 10, 6))
    first = dict(found[:3])
    assert [name for name, _ in found[:3]] == [f"document{index}" for index in by_hash]
    assert sorted(found[3:5]) == [("document0", first["document0"] + 10), ("document2", first["document2"] + 10)]
    assert found[5] == ("document2", first["document2"] + 20)


def test_windows_begin_anywhere_that_leaves_no_window_out(make_cache: MakeCache) -> None:
    lengths = [111 + index for index in range(60)]
    windows = evaluation_windows(make_cache(lengths), "train", 100, 60)
    starts = np.array([window.start for window in windows])
    left_over = np.array([lengths[int(window.document_id.removeprefix("document"))] for window in windows]) - 101
    assert (starts >= 0).all() and (starts <= left_over).all()
    # Uniform shares of what is left over: mean 1/2, five standard errors of 60 draws.
    assert abs((starts / left_over).mean() - 0.5) < 5 * (1 / 12 / 60) ** 0.5


@settings(max_examples=60)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.integers(1, 12), st.sampled_from(["document", "eos"]))
def test_windows_overlap_in_no_scored_position(
    make_cache: MakeCache, lengths: list[int], length: int, packing: str
) -> None:
    cache = make_cache(lengths, packing=packing)
    sizes = lengths if packing == "document" else [sum(lengths) + len(lengths) - 1]
    available = sum((size - 1) // length for size in sizes)
    assume(available > 0 and len(set(cache.text_hashes)) == len(lengths))
    windows = evaluation_windows(cache, "train", length, available)
    assert len(set(places(windows))) == available
    for name, group in Counter(window.document_id for window in windows).items():
        starts = sorted(window.start for window in windows if window.document_id == name)
        assert len(starts) == group and all(np.diff(starts) == length)
    with pytest.raises(StorageError, match=f"has {available} window"):
        evaluation_windows(cache, "train", length, available + 1)


def test_pieces_make_up_the_window_and_the_window_is_the_text(make_cache: MakeCache) -> None:
    cache = make_cache([25])
    window = evaluation_windows(cache, "train", 10, 2)[1]
    assert window.tokens().tolist() == cache.tokens[window.start : window.start + 11].tolist()
    assert [*window.tokens(0, 4), *window.tokens(4, 11)] == window.tokens().tolist()
    assert window.tokens(3, 3).shape == (0,) and window.tokens().dtype == np.int64
    with pytest.raises(IndexError):
        window.tokens(0, 12)


def test_eos_windows_cross_documents_and_name_the_first(make_cache: MakeCache) -> None:
    cache = make_cache([6, 9], packing="eos")
    joined = [*cache.tokens[:6], 0, *cache.tokens[6:]]
    windows = evaluation_windows(cache, "train", 5, 3)
    crossing = [window for window in windows if window.document_id == "document0" and window.start + 5 >= 6]
    assert crossing
    for window in crossing:
        assert window.tokens().tolist() == joined[window.start : window.start + 6]


def test_a_text_that_occurs_twice_is_evaluated_once(make_cache: MakeCache) -> None:
    cache = make_cache([20, 20, 20])
    twice = replace(cache, text_hashes=(cache.text_hashes[0], *cache.text_hashes[:2]))
    assert len({window.document_id for window in evaluation_windows(twice, "train", 19, 2)}) == 2
    with pytest.raises(StorageError, match="has 2 window"):
        evaluation_windows(twice, "train", 19, 3)


def test_too_few_windows_says_how_many_and_how_long(make_cache: MakeCache) -> None:
    cache = make_cache([25, 35])
    with pytest.raises(StorageError, match="has 5 .*write eval.windows=5 at most, or eval.length=8 at most"):
        evaluation_windows(cache, "train", 10, 7)
    assert len(evaluation_windows(cache, "train", 8, 7)) == 7
    with pytest.raises(StorageError, match="has 5 "):
        evaluation_windows(cache, "train", 9, 7)
    with pytest.raises(StorageError, match="or give more text"):
        evaluation_windows(cache, "train", 10, 100)


@pytest.mark.parametrize(
    ("length", "count", "message"),
    [(25, 1, "longest usable value is 24 bytes"), (0, 1, "eval.length is 0"), (5, 0, "eval.windows is 0")],
)
def test_impossible_requests_are_refused(make_cache: MakeCache, length: int, count: int, message: str) -> None:
    with pytest.raises(StorageError, match=message):
        evaluation_windows(make_cache([25]), "train", length, count)
