import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial import distance as scipy_distance  # type: ignore[import-untyped]
from torch import Tensor

from workers.evaluations.distances import (
    DISTANCES,
    jensen_shannon_distance,
    jensen_shannon_divergence,
    one_minus_cosine,
    probabilities,
    total_variation,
)

logits = st.lists(st.floats(-800, 800, width=32), min_size=1, max_size=12)


def distribution(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_known_values() -> None:
    even, certain = distribution(0.5, 0.5), distribution(1.0, 0.0)
    assert float(total_variation(even, certain)) == 0.5
    # The entropy of the mixture (3/4, 1/4), less half of one bit and half of none.
    entropy = -(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25))
    assert float(jensen_shannon_divergence(even, certain)) == pytest.approx(entropy - 0.5, rel=1e-14)
    assert float(jensen_shannon_distance(even, certain)) == pytest.approx(math.sqrt(entropy - 0.5), rel=1e-14)
    assert float(one_minus_cosine(even, certain)) == pytest.approx(1 - math.sqrt(0.5), rel=1e-14)
    assert total_variation(distribution(0.2, 0.3, 0.5), distribution(0.5, 0.1, 0.4)).item() == pytest.approx(0.3)


@pytest.mark.parametrize("name", DISTANCES)
def test_disjoint_distributions_are_one_apart(name: str) -> None:
    p, q = distribution(0.25, 0.75, 0.0, 0.0), distribution(0.0, 0.0, 1.0, 0.0)
    assert float(DISTANCES[name](p, q)) == pytest.approx(1.0, rel=1e-15)


@given(logits, st.data())
def test_every_distance_lies_from_zero_to_one_and_is_symmetric(first: list[float], data: st.DataObject) -> None:
    second = data.draw(st.lists(st.floats(-800, 800, width=32), min_size=len(first), max_size=len(first)))
    p, q = probabilities(torch.tensor(first)), probabilities(torch.tensor(second))
    for distance in DISTANCES.values():
        found = float(distance(p, q))
        assert 0 <= found <= 1
        assert found == pytest.approx(float(distance(q, p)), abs=1e-12)
        assert float(distance(p, p)) <= 1e-7


@given(logits, st.data())
def test_the_jensen_shannon_distance_is_scipys(first: list[float], data: st.DataObject) -> None:
    second = data.draw(st.lists(st.floats(-800, 800, width=32), min_size=len(first), max_size=len(first)))
    p, q = probabilities(torch.tensor(first)), probabilities(torch.tensor(second))
    with np.errstate(invalid="ignore"):
        right = float(scipy_distance.jensenshannon(p.numpy(), q.numpy(), base=2)) ** 2
    # Near 0 the root of a rounding is no rounding: theirs may be of a negative number.
    assert float(jensen_shannon_divergence(p, q)) == pytest.approx(0.0 if math.isnan(right) else right, abs=1e-13)
    root = math.sqrt(float(jensen_shannon_divergence(p, q)))
    assert float(jensen_shannon_distance(p, q)) == pytest.approx(root, rel=1e-14)


def test_the_cosine_keeps_its_digits_near_zero() -> None:
    tiny = 1e-9
    p, q = distribution(1.0, 0.0), distribution(1.0, tiny)
    assert float(one_minus_cosine(p, q)) == pytest.approx(tiny**2 / 2, rel=1e-6)


def test_axes_before_the_vocabulary_are_kept_and_numbers_that_are_none_stay_visible() -> None:
    p = probabilities(torch.zeros(3, 1, 4))
    q = probabilities(torch.tensor([[0.0, 0.0, 0.0, math.nan], [0.0, 0.0, 0.0, 0.0]]))
    for distance in DISTANCES.values():
        found = distance(p, q)
        assert found.shape == (3, 2) and found.dtype == torch.float64
        assert found[:, 0].isnan().all() and (found[:, 1] == 0).all()
