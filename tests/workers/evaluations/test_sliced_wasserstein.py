import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import ndtri  # type: ignore[import-untyped]
from scipy.stats import wasserstein_distance  # type: ignore[import-untyped]

from workers.evaluations.sliced_wasserstein import wasserstein

values = st.floats(-100, 100, allow_subnormal=False)
samples = st.integers(1, 9).flatmap(lambda size: arrays(np.float64, (size, 3), elements=values))


def normal_sample(size: int, mean: float = 0.0, std: float = 1.0) -> np.ndarray:
    """(size, 1): the quantiles of a normal at equal steps."""
    return (mean + std * ndtri((np.arange(size) + 0.5) / size))[:, None]


def test_equal_samples_have_no_distance() -> None:
    sample = np.random.default_rng(0).normal(size=(12, 5))
    assert (wasserstein(sample, sample[::-1]) == 0).all()


def test_each_point_three_times_is_the_same_distribution() -> None:
    sample = np.random.default_rng(0).normal(size=(7, 5))
    assert (wasserstein(sample, np.repeat(sample, 3, axis=0)) == 0).all()


@pytest.mark.parametrize("shift", [-2.5, 0.25, 8.0])
def test_a_shift_by_c_is_c_away(shift: float) -> None:
    sample = np.random.default_rng(1).normal(size=(9, 4))
    np.testing.assert_allclose(wasserstein(sample, sample + shift), abs(shift), rtol=1e-12)


def test_normals_are_as_far_apart_as_is_known() -> None:
    one = normal_sample(4000)
    # W_1 of normals is the mean of |mean + (s - 1) z| over a standard normal z.
    assert wasserstein(one, normal_sample(3000, mean=3.0))[0] == pytest.approx(3.0, rel=1e-3)
    assert wasserstein(one, normal_sample(3000, std=2.5))[0] == pytest.approx(1.5 * math.sqrt(2 / math.pi), rel=1e-3)


@given(samples, samples)
def test_it_agrees_with_scipy(one: np.ndarray, other: np.ndarray) -> None:
    right = [wasserstein_distance(a, b) for a, b in zip(one.T, other.T, strict=True)]
    np.testing.assert_allclose(wasserstein(one, other), right, rtol=1e-9, atol=1e-9)


@given(samples, samples, samples)
def test_it_is_symmetric_and_keeps_the_triangle_inequality(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    np.testing.assert_allclose(wasserstein(a, b), wasserstein(b, a), rtol=1e-12, atol=1e-12)
    assert (wasserstein(a, c) <= wasserstein(a, b) + wasserstein(b, c) + 1e-9).all()


@given(samples, samples, st.floats(-8, 8))
def test_it_scales_with_its_samples(one: np.ndarray, other: np.ndarray, factor: float) -> None:
    scaled = wasserstein(factor * one, factor * other)
    np.testing.assert_allclose(scaled, abs(factor) * wasserstein(one, other), rtol=1e-9, atol=1e-9)


def test_what_is_not_finite_is_infinitely_far_in_its_direction_alone() -> None:
    one, other = np.zeros((3, 3)), np.ones((2, 3))
    one[1, 0], other[0, 2] = np.nan, np.inf
    assert wasserstein(one, other).tolist() == [np.inf, 1.0, np.inf]


def test_a_sample_without_points_is_refused() -> None:
    with pytest.raises(ValueError, match="0 and 2 points"):
        wasserstein(np.zeros((0, 1)), np.zeros((2, 1)))
