import hashlib

from hypothesis import given, settings
from hypothesis import strategies as st

from storage.splits import FRACTIONS, REPORT, SELECT, TRAIN, assign_splits, split_of, text_hash


def test_text_hash_is_sha256_of_utf8() -> None:
    assert text_hash("naïve") == hashlib.sha256(b"na\xc3\xafve").hexdigest()


def test_split_of_is_by_the_documented_fractions() -> None:
    fraction = {0.0: TRAIN, 0.6999: TRAIN, 0.7001: SELECT, 0.8499: SELECT, 0.8501: REPORT}
    for value, split in fraction.items():
        assert split_of(f"{int(value * 2**64):016x}" + "0" * 48) == split
    assert split_of("f" * 64) == REPORT


def test_many_documents_fall_by_their_own_hash_in_about_the_documented_shares() -> None:
    hashes = [text_hash(str(number)) for number in range(20_000)]
    splits = assign_splits(hashes)
    assert splits == {content: split_of(content) for content in hashes}
    for split, (low, high) in FRACTIONS.items():
        share = sum(found == split for found in splits.values()) / len(hashes)
        assert abs(share - (high - low)) < 0.01


@settings(max_examples=60)
@given(st.lists(st.integers(0, 10**6), unique=True, min_size=3, max_size=12))
def test_three_distinct_documents_fill_three_splits_in_any_order(numbers: list[int]) -> None:
    hashes = [text_hash(str(number)) for number in numbers]
    splits = assign_splits(hashes)
    assert set(splits.values()) == set(FRACTIONS)
    assert splits == assign_splits(hashes[::-1] + hashes)
    moved = sum(splits[content] != split_of(content) for content in hashes)
    assert moved <= 2


def test_two_documents_leave_a_split_empty() -> None:
    assert len(set(assign_splits([text_hash("a"), text_hash("b")]).values())) <= 2
