import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.permutation import KeyedPermutation, keyed_integer


@settings(max_examples=60)
@given(st.integers(1, 3000), st.text(max_size=5))
def test_every_index_is_met_once(size: int, key: str) -> None:
    assert sorted(KeyedPermutation(size, key)(np.arange(size)).tolist()) == list(range(size))


def test_it_is_fixed_by_its_key_and_computed_at_the_asked_indices_alone() -> None:
    whole = KeyedPermutation(1000, "a")(np.arange(1000))
    assert np.array_equal(KeyedPermutation(1000, "a")([[7, 3], [999, 3]]), whole[[[7, 3], [999, 3]]])
    assert (KeyedPermutation(1000, "b")(np.arange(1000)) != whole).mean() > 0.98


@pytest.mark.parametrize("size", [3, 8, 13])
def test_places_are_uniform_over_keys(size: int) -> None:
    keys = 1000
    hits = np.zeros((size, size))
    for key in range(keys):
        hits[np.arange(size), KeyedPermutation(size, str(key))(np.arange(size))] += 1
    chi_squared = ((hits - keys / size) ** 2 / (keys / size)).sum()
    freedom = (size - 1) ** 2
    assert abs(chi_squared - freedom) < 5 * np.sqrt(2 * freedom)


def test_a_range_of_a_trillion_costs_nothing() -> None:
    images = KeyedPermutation(10**12, "k")(np.arange(1000))
    assert len(set(images.tolist())) == 1000 and 0.4e12 < images.mean() < 0.6e12


@pytest.mark.parametrize("index", [-1, 10])
def test_index_outside_is_refused(index: int) -> None:
    with pytest.raises(IndexError, match=r"outside 0\.\.9"):
        KeyedPermutation(10, "k")([index])


def test_keyed_integers_are_fixed_and_spread() -> None:
    numbers = [keyed_integer(f"x/{row}", 1000) for row in range(500)]
    assert numbers[0] == keyed_integer("x/0", 1000)
    assert 450 < np.mean(numbers) < 550 and min(numbers) >= 0 and max(numbers) < 1000
