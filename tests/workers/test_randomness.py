import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from workers.randomness import keyed_normals, keyed_uniforms


@given(st.integers(0, 2**31), st.integers(0, 10**6), st.lists(st.integers(0, 511), min_size=1, max_size=6, unique=True))
def test_a_rows_numbers_do_not_depend_on_the_other_rows(seed: int, step: int, rows: list[int]) -> None:
    together = keyed_normals("noise", seed, step, np.array(rows), 5)
    alone = np.concatenate([keyed_normals("noise", seed, step, np.array([row]), 5) for row in rows])
    assert np.array_equal(together, alone)


def test_every_part_of_the_key_changes_the_numbers() -> None:
    keys = [("noise", 0, 0, 0), ("reset", 0, 0, 0), ("noise", 1, 0, 0), ("noise", 0, 1, 0), ("noise", 0, 0, 1)]
    draws = {keyed_normals(purpose, seed, step, np.array([row]), 4).tobytes() for purpose, seed, step, row in keys}
    assert len(draws) == len(keys)


def test_normals_are_standard() -> None:
    normals = keyed_normals("noise", 0, 0, np.arange(20), 10_000)
    # 200,000 draws: five standard errors of mean and variance.
    assert abs(normals.mean()) < 5 / 200_000**0.5
    assert abs(normals.var() - 1) < 5 * (2 / 200_000) ** 0.5


def test_uniforms_are_below_a_probability_as_often_as_it_says() -> None:
    below = sum((keyed_uniforms("reset", 3, step, np.arange(100)) < 0.1).sum() for step in range(100))
    assert abs(below - 1000) < 5 * (10_000 * 0.1 * 0.9) ** 0.5
