import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from workers import randomness
from workers.randomness import Twister, keyed_normals, keyed_uniforms


@given(st.integers(0, 2**31), st.integers(0, 10**6), st.lists(st.integers(0, 511), min_size=1, max_size=6, unique=True))
def test_a_rows_numbers_do_not_depend_on_the_other_rows(seed: int, step: int, rows: list[int]) -> None:
    together = keyed_normals("noise", seed, step, np.array(rows), 5)
    alone = torch.cat([keyed_normals("noise", seed, step, np.array([row]), 5) for row in rows])
    assert torch.equal(together, alone)


def test_every_part_of_the_key_changes_the_numbers() -> None:
    keys = [("noise", 0, 0, 0), ("reset", 0, 0, 0), ("noise", 1, 0, 0), ("noise", 0, 1, 0), ("noise", 0, 0, 1)]
    draws = {
        keyed_normals(purpose, seed, step, np.array([row]), 4).numpy().tobytes() for purpose, seed, step, row in keys
    }
    assert len(draws) == len(keys)


def test_normals_are_standard() -> None:
    normals = keyed_normals("noise", 0, 0, np.arange(20), 10_000)
    # 200,000 draws: five standard errors of mean and variance.
    assert abs(normals.mean()) < 5 / 200_000**0.5
    assert abs(normals.var() - 1) < 5 * (2 / 200_000) ** 0.5


def test_a_twister_filled_word_by_word_gives_what_torch_draws_from_the_seed_that_has_these_words() -> None:
    seeded = torch.Generator().manual_seed(20261129)
    (state,) = seeded.get_state().numpy().view(randomness._STATE)
    filled = Twister().filled(state["words"])
    assert torch.equal(torch.empty(1000).normal_(generator=filled), torch.empty(1000).normal_(generator=seeded))


def test_normals_of_two_rows_or_steps_are_independent() -> None:
    normals = torch.cat([keyed_normals("noise", 0, step, np.arange(3), 50_000) for step in range(3)])
    correlations = torch.corrcoef(normals).fill_diagonal_(0.0)
    assert float(correlations.abs().max()) < 5 / 50_000**0.5


def test_uniforms_are_below_a_probability_as_often_as_it_says() -> None:
    below = sum((keyed_uniforms("reset", 3, step, np.arange(100)) < 0.1).sum() for step in range(100))
    assert abs(below - 1000) < 5 * (10_000 * 0.1 * 0.9) ** 0.5


def test_a_uniform_is_the_first_of_the_rows_own_generator() -> None:
    rows = np.array([7, 0, 2**31, 7])
    own = [randomness.keyed_generator("reset", 3, 11, int(row)).random() for row in rows]
    assert keyed_uniforms("reset", 3, 11, rows).tolist() == own
