import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.bank.contract import BankTimeoutError
from storage.bank.layout import BankLayout
from storage.bank.reservoir import NO_LIMIT, Entries, Offer, Reservoir, merge_reservoirs, reservoir_keys
from storage.bank.reservoir_store import ReservoirStore
from storage.errors import StorageError

ROWS = np.arange(7)


def brute_force(seed: int, steps: int, rows: int, capacity: int) -> list[tuple[int, int]]:
    """The entries (step, row) of `steps` whole steps with the smallest keys, by sorting all of them."""
    keyed = [
        (int(key), step, row)
        for step in range(steps)
        for row, key in enumerate(reservoir_keys(seed, step, np.arange(rows)))
    ]
    return [(step, row) for _, step, row in sorted(keyed)[:capacity]]


def offer(step: int, rows: np.ndarray, seed: int = 0, limit: int = NO_LIMIT) -> Offer:
    keys = reservoir_keys(seed, step, rows)
    states = np.stack([rows, np.full(rows.size, step)], axis=1).astype(np.float32)
    return Offer(step, seed, rows, keys, rows, states, limit)


def store(capacity: int, lo: int = 0, hi: int = 7) -> ReservoirStore:
    return ReservoirStore(lo, hi, BankLayout(rows=7, elements=2, capacity=capacity))


def entries(kept: Reservoir) -> list[tuple[int, int]]:
    return list(zip(kept.steps.tolist(), kept.rows.tolist(), strict=True))


def test_keys_are_splitmix64_of_the_words() -> None:
    """The first output of Vigna's splitmix64 from state 0 is the mixing of one zero word."""
    from storage.bank.reservoir import _mix

    assert int(_mix(np.zeros(1, dtype=np.uint64))[0]) == 0xE220A8397B1DCDAF


@given(
    seed=st.integers(0, 2**70),
    step=st.integers(0, 10**6),
    rows=st.lists(st.integers(0, 10**6), min_size=1, unique=True),
)
def test_a_key_depends_on_its_own_row_alone_and_never_repeats_in_a_step(seed: int, step: int, rows: list[int]) -> None:
    together = reservoir_keys(seed, step, np.array(rows))
    alone = [int(reservoir_keys(seed, step, np.array([row]))[0]) for row in rows]
    assert together.tolist() == alone
    assert len(set(alone)) == len(rows)


def test_seeds_and_steps_change_all_keys() -> None:
    keys = [reservoir_keys(seed, step, np.arange(50)) for seed, step in ((0, 0), (0, 1), (1, 0), (2**64, 0))]
    assert len(set(np.concatenate(keys).tolist())) == 200


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(StorageError, match="seed of the reservoir is -1"):
        reservoir_keys(-1, 0, ROWS)


def test_every_row_of_every_step_is_drawn_equally_often() -> None:
    """3 of 12 entries over 4000 seeds: each 1000 times, every two of them 182 times, within 5 sigma (137 and 66)."""
    seeds, steps, rows, capacity = 4000, 3, 4, 3
    drawn = np.zeros((seeds, steps * rows), dtype=bool)
    for seed in range(seeds):
        for step, row in brute_force(seed, steps, rows, capacity):
            drawn[seed, step * rows + row] = True
    share = capacity / (steps * rows)
    assert np.abs(drawn.sum(axis=0) - seeds * share).max() < 5 * np.sqrt(seeds * share * (1 - share))
    together = (drawn.T.astype(np.int64) @ drawn)[np.triu_indices(steps * rows, 1)]
    pair = share * (capacity - 1) / (steps * rows - 1)  # both of two entries, without replacement
    assert np.abs(together - seeds * pair).max() < 5 * np.sqrt(seeds * pair * (1 - pair))


@given(data=st.data(), capacity=st.integers(1, 30), steps=st.integers(1, 5))
def test_any_order_grouping_and_repeats_give_the_smallest_keys(data: st.DataObject, capacity: int, steps: int) -> None:
    kept = store(capacity)
    for step in range(steps):
        order = data.draw(st.permutations(range(7)))
        repeats = data.draw(st.lists(st.integers(0, 6), max_size=4, unique=True))
        cuts = sorted(data.draw(st.sets(st.integers(1, 6))))
        for part in [*np.split(np.array(order), cuts), np.array(repeats, dtype=np.int64)]:
            kept.offer(offer(step, part))
        assert entries(kept.read(step + 1, 0.0)) == brute_force(0, step + 1, 7, capacity)
        if step:  # as it was before this step began
            assert entries(kept.read(step, 0.0)) == brute_force(0, step, 7, capacity)
    found = kept.read(steps, 0.0)
    assert kept.states(found.steps, found.rows).tolist() == [[row, step] for step, row in entries(found)]


@given(capacity=st.integers(1, 20), cut=st.integers(1, 6))
def test_the_reservoirs_of_parts_merge_into_that_of_the_whole(capacity: int, cut: int) -> None:
    low, high = store(capacity, 0, cut), store(capacity, cut, 7)
    for step in range(4):
        low.offer(offer(step, ROWS[:cut]))
        high.offer(offer(step, ROWS[cut:]))
    parts = [low.read(4, 0.0), high.read(4, 0.0)]
    assert entries(merge_reservoirs(parts, capacity)) == brute_force(0, 4, 7, capacity)
    assert entries(merge_reservoirs([*parts, parts[0]], capacity)) == brute_force(0, 4, 7, capacity)
    assert len(merge_reservoirs([], capacity)) == 0


def test_equal_keys_are_ordered_by_step_and_row() -> None:
    keys = np.array([5, 5, 5, 1], dtype=np.uint64)
    kept = Reservoir(keys, np.array([2, 1, 1, 9]), np.array([0, 3, 2, 9])).smallest(3)
    assert entries(kept) == [(9, 9), (1, 2), (1, 3)]


def test_memory_is_bounded_by_the_capacity_before_and_within_the_newest_step() -> None:
    kept = store(3)
    for step in range(5):
        kept.offer(offer(step, ROWS))
        assert len(kept._settled.keys) <= 3
        assert len(kept._newest.keys) <= 3
        held = [*kept._settled.states, *kept._newest.states]
        assert all(state.flags.owndata for state in held), "a view would keep the whole block it came in"


def test_a_known_limit_lets_a_shard_drop_what_can_never_be_drawn() -> None:
    kept = store(5)
    kept.offer(offer(0, ROWS))
    third = int(kept.read(1, 0.0).keys[2])
    kept.offer(offer(1, ROWS[:0], limit=third))
    assert entries(kept.read(1, 0.0)) == brute_force(0, 1, 7, 3)


def test_a_late_offer_counts_for_its_own_step() -> None:
    kept = store(9)
    kept.offer(offer(0, ROWS[:5]))
    kept.offer(offer(1, ROWS))
    with pytest.raises(BankTimeoutError, match=r"offer of step 0, row 5 \(2 of 7"):
        kept.read(1, 0.0)
    kept.offer(offer(0, ROWS[5:]))
    assert entries(kept.read(1, 0.0)) == brute_force(0, 1, 7, 9)
    assert entries(kept.read(2, 0.0)) == brute_force(0, 2, 7, 9)


def test_of_two_offers_of_one_entry_the_later_state_is_kept() -> None:
    kept = store(9)
    kept.offer(offer(0, ROWS))
    again = offer(0, ROWS[3:4])
    kept.offer(again._replace(states=np.array([[8.0, 8.0]], np.float32)))
    assert len(kept.read(1, 0.0)) == 7
    assert kept.states(np.array([0]), np.array([3])).tolist() == [[8.0, 8.0]]


def test_what_was_restored_goes_on_as_if_uninterrupted() -> None:
    whole, resumed = store(4), store(4)
    for step in range(6):
        whole.offer(offer(step, ROWS))
    first = store(4)
    for step in range(3):
        first.offer(offer(step, ROWS))
    saved = first.entries(3, NO_LIMIT, 0.0)
    resumed.restore(3, 0, [saved.take(slice(2)), saved.take(slice(2, None))])
    assert entries(resumed.read(3, 0.0)) == brute_force(0, 3, 7, 4)
    resumed.offer(offer(2, ROWS))  # the step before, once more
    for step in range(3, 6):
        resumed.offer(offer(step, ROWS))
    assert entries(resumed.read(6, 0.0)) == entries(whole.read(6, 0.0))


def test_merged_entries_are_sorted_and_cut() -> None:
    block = np.arange(8, dtype=np.float32).reshape(4, 2)
    keys = np.array([40, 10, 30, 20], dtype=np.uint64)
    given_entries = Entries.of_block(keys, np.zeros(4, np.int64), np.arange(4), block)
    merged = Entries.none().merge(given_entries, 3)
    assert merged.keys.tolist() == [10, 20, 30]
    assert merged.block(2, np.dtype(np.float32)).tolist() == [[2.0, 3.0], [6.0, 7.0], [4.0, 5.0]]
    assert Entries.none().block(2, np.dtype(np.float32)).shape == (0, 2)
