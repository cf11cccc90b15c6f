from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.batch_order import StreamOrder, WindowOrder
from storage.errors import StorageError
from storage.token_cache import TokenCache

MakeCache = Callable[..., TokenCache]
LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(lambda lengths: max(lengths) > 5)
LIMITS = settings(max_examples=40)
PACKING = st.sampled_from(["document", "eos"])
ORDERS = pytest.mark.parametrize("order_class", [WindowOrder, StreamOrder])


def windows_of_an_epoch(order: WindowOrder, epoch: int) -> list[tuple[int, int]]:
    first, last = epoch * order.window_count, (epoch + 1) * order.window_count
    steps = range(first // order.rows, -(-last // order.rows))
    located = [order.locate(step, range(order.rows)) for step in steps]
    places = [place for streams, starts in located for place in zip(streams.tolist(), starts.tolist(), strict=True)]
    return places[first - steps.start * order.rows : last - steps.start * order.rows]


@LIMITS
@given(LENGTHS, PACKING, st.integers(1, 5), st.integers(1, 7), st.integers(0, 3))
def test_an_epoch_visits_each_window_once(
    make_cache: MakeCache, lengths: list[int], packing: str, context: int, rows: int, seed: int
) -> None:
    cache = make_cache(lengths, packing=packing)
    order = WindowOrder(cache, context=context, rows=rows, seed=seed)
    tiling = [
        (stream, start)
        for stream, length in enumerate(order.streams.lengths.tolist())
        for start in range(0, length - context, context)
    ]
    for epoch in range(2):
        assert sorted(windows_of_an_epoch(order, epoch)) == tiling


@LIMITS
@given(LENGTHS, st.integers(1, 5))
def test_every_token_is_in_a_window_or_counted(make_cache: MakeCache, lengths: list[int], context: int) -> None:
    order = WindowOrder(make_cache(lengths), context=context, rows=1, seed=0)
    used = [length for length in lengths if length >= context + 1]
    assert order.skipped_documents == len(lengths) - len(used)
    covered = order.window_count * context + len(used)
    assert covered + order.dropped_tokens == sum(used)


@ORDERS
@LIMITS
@given(lengths=LENGTHS, packing=PACKING, step=st.integers(0, 50), seed=st.integers(0, 3))
def test_rows_do_not_depend_on_what_they_are_asked_with(
    make_cache: MakeCache,
    order_class: type[WindowOrder | StreamOrder],
    lengths: list[int],
    packing: str,
    step: int,
    seed: int,
) -> None:
    order = order_class(make_cache(lengths, packing=packing), context=3, rows=6, seed=seed)
    whole = order.windows(step, range(6))
    assert whole.shape == (6, 4) and whole.dtype == np.int64
    fresh = order_class(make_cache(lengths, packing=packing), context=3, rows=6, seed=seed)
    assert np.array_equal(np.concatenate([fresh.windows(step, [4, 5]), fresh.windows(step, [0])]), whole[[4, 5, 0]])
    assert fresh.windows(step, []).shape == (0, 4)


@ORDERS
@LIMITS
@given(lengths=LENGTHS, step=st.integers(0, 50))
def test_a_window_lies_inside_one_document(
    make_cache: MakeCache, order_class: type[WindowOrder | StreamOrder], lengths: list[int], step: int
) -> None:
    cache = make_cache(lengths)
    texts = [cache.tokens[a:b].tobytes() for a, b in zip(cache.offsets, cache.offsets[1:], strict=False)]
    order = order_class(cache, context=4, rows=5, seed=1)
    for window in order.windows(step, range(5)).astype(np.uint16):
        assert any(window.tobytes() in text for text in texts)


def test_seeds_and_epochs_have_orders_of_their_own(make_cache: MakeCache) -> None:
    cache = make_cache([400, 300])
    orders = [WindowOrder(cache, context=4, rows=5, seed=seed) for seed in (0, 1)]
    first, second = windows_of_an_epoch(orders[0], 0), windows_of_an_epoch(orders[0], 1)
    other = windows_of_an_epoch(orders[1], 0)
    assert len(first) > 150 and sorted(first) == sorted(second) == sorted(other)
    for found in (second, other):
        assert sum(a == b for a, b in zip(first, found, strict=True)) < 10


@LIMITS
@given(LENGTHS, PACKING, st.integers(1, 5), st.integers(1, 6), st.integers(0, 5))
def test_tbtt_windows_continue_at_the_last_target(
    make_cache: MakeCache, lengths: list[int], packing: str, context: int, rows: int, seed: int
) -> None:
    order = StreamOrder(make_cache(lengths, packing=packing), context=context, rows=rows, seed=seed)
    streams, starts = order.locate(0, range(rows))
    assert order.document_starts(0, range(rows)).all()
    for step in range(1, order.window_count + 3):
        next_streams, next_starts = order.locate(step, range(rows))
        begins = order.document_starts(step, range(rows))
        assert np.array_equal(next_streams[~begins], streams[~begins])
        assert np.array_equal(next_starts[~begins], starts[~begins] + context)
        assert (next_starts[begins] == 0).all()
        # A row leaves a document only when no further window fits.
        assert (starts + 2 * context + 1 > order.streams.lengths[streams])[begins].all()
        streams, starts = next_streams, next_starts


@LIMITS
@given(LENGTHS, st.integers(0, 5))
def test_tbtt_rows_go_through_every_window_before_they_meet_one_again(
    make_cache: MakeCache, lengths: list[int], seed: int
) -> None:
    order = StreamOrder(make_cache(lengths), context=2, rows=2, seed=seed)
    steps = range(order.window_count, 2 * order.window_count)
    found = {tuple(int(part[0]) for part in order.locate(step, [1])) for step in steps}
    assert len(found) == order.window_count


def test_tbtt_rows_start_apart_at_places_that_the_seed_draws(make_cache: MakeCache) -> None:
    cache = make_cache([10_000])
    starts = [StreamOrder(cache, context=10, rows=10, seed=seed).locate(0, range(10))[1] for seed in range(20)]
    for part in range(10):
        drawn = [int(found[part]) for found in starts]
        assert min(drawn) >= 1000 * part and max(drawn) < 1000 * (part + 1) and len(set(drawn)) > 15


def test_windows_hold_the_tokens_of_their_place(make_cache: MakeCache) -> None:
    cache = make_cache([50, 60])
    order = WindowOrder(cache, context=7, rows=9, seed=3)
    streams, starts = order.locate(2, range(9))
    for window, stream, start in zip(order.windows(2, range(9)), streams, starts, strict=True):
        begin = cache.offsets[stream] + start
        assert window.tolist() == cache.tokens[begin : begin + 8].tolist()


def test_segments_follow_the_documents_under_eos_packing(make_cache: MakeCache) -> None:
    order = StreamOrder(make_cache([5, 3, 9], packing="eos"), context=18, rows=1, seed=0)
    assert order.window_count == 1
    assert order.segment_ids(1, [0]).tolist() == [[0] * 6 + [1] * 4 + [2] * 9]
    assert (order.windows(1, [0])[0] == 0).nonzero()[0].tolist() == [5, 9]


def test_segments_are_refused_under_document_packing(make_cache: MakeCache) -> None:
    with pytest.raises(StorageError, match="write data.packing=eos"):
        WindowOrder(make_cache([9]), context=3, rows=1, seed=0).segment_ids(0, [0])


@ORDERS
def test_window_longer_than_every_document_names_the_longest(
    make_cache: MakeCache, order_class: type[WindowOrder | StreamOrder]
) -> None:
    cache = make_cache([9, 12, 5])
    assert order_class(cache, context=11, rows=1, seed=0).window_count == 1
    with pytest.raises(StorageError, match="trial.context is 12, longer than every document .* value is 11 bytes"):
        order_class(cache, context=12, rows=1, seed=0)


@ORDERS
@pytest.mark.parametrize(("step", "rows"), [(-1, [0]), (0, [-1]), (0, [3])])
def test_steps_and_rows_that_do_not_exist_are_refused(
    make_cache: MakeCache, order_class: type[WindowOrder | StreamOrder], step: int, rows: list[int]
) -> None:
    with pytest.raises(IndexError, match="rows from 0 to 2"):
        order_class(make_cache([20]), context=3, rows=3, seed=0).windows(step, rows)


def test_other_splits_are_never_met(make_cache: MakeCache) -> None:
    cache = make_cache([30, 30, 30], splits=["train", "report", "train"])
    assert WindowOrder(cache, context=5, rows=2, seed=0).window_count == 10
    order = WindowOrder(cache, split="report", context=5, rows=2, seed=0)
    text = cache.tokens[30:60].tobytes()
    assert all(window.astype(np.uint16).tobytes() in text for window in order.windows(0, range(2)))
