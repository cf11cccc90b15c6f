import numpy as np
import pytest

from storage.bank.layout import BankLayout
from storage.bank.moments import reduce_moments, row_moments
from storage.errors import StorageError

LAYOUT = BankLayout(rows=5, elements=3000, groups=(("a", 0, 1000), ("b", 1000, 3000)))


def test_a_rows_partials_do_not_depend_on_its_neighbours() -> None:
    states = np.random.default_rng(0).standard_normal((5, 3000), dtype=np.float32)
    together = row_moments(states, LAYOUT)
    alone = np.concatenate([row_moments(states[row : row + 1].copy(), LAYOUT) for row in range(5)])
    assert together.tobytes() == alone.tobytes()


def test_moments_equal_a_float64_computation() -> None:
    states = np.random.default_rng(1).standard_normal((5, 3000), dtype=np.float32) * 3 + 1
    moments = reduce_moments(row_moments(states, LAYOUT), LAYOUT)
    part = states[:, 1000:].astype(np.float64)
    assert moments.count.tolist() == [5000.0, 10000.0]
    assert moments.mean[1] == pytest.approx(part.mean(), rel=1e-13)
    assert moments.std[1] == pytest.approx(part.std(), rel=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_row_counts_for_nothing_in_any_group(bad: float) -> None:
    states = np.ones((5, 3000), np.float32)
    states[2, 0] = bad
    moments = reduce_moments(row_moments(states, LAYOUT), LAYOUT)
    assert moments.count.tolist() == [4000.0, 8000.0]
    assert moments.mean.tolist() == [1.0, 1.0]


def test_squares_of_the_largest_floats_do_not_overflow() -> None:
    states = np.full((5, 3000), np.finfo(np.float32).max, np.float32)
    assert np.isfinite(row_moments(states, LAYOUT)).all()


def test_nothing_counted_gives_nan_and_not_zero() -> None:
    moments = reduce_moments(np.zeros((5, 2, 3)), LAYOUT)
    assert np.isnan(moments.mean).all()
    assert np.isnan(moments.std).all()


def test_partials_of_another_bank_are_refused() -> None:
    with pytest.raises(StorageError, match=r"give \(5, 2, 3\)"):
        reduce_moments(np.zeros((4, 2, 3)), LAYOUT)
