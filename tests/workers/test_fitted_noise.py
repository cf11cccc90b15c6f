"""Fitted noise: which batch weighs what, and moments that no split of the rows moves."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.workers.intervention_makers import ROWS, VECTOR, build, final_state
from workers.interventions.fitted_noise import FittedNoise


def constant_state(value: float) -> list[dict[str, torch.Tensor]]:
    """A final state of all rows whose heads hold `value` and `value + 2` in equal parts: mean value + 1, variance 1."""
    vectors = torch.full((ROWS, VECTOR.elements), value)
    vectors[:, ::2] += 2.0
    return VECTOR.unpack(vectors)


def fitted(**settings: Any) -> FittedNoise:
    intervention = build("fitted_noise", **settings)
    assert isinstance(intervention, FittedNoise)
    return intervention


def test_the_new_batch_weighs_one_minus_beta() -> None:
    intervention = fitted(beta=0.1)
    rows = np.arange(ROWS)
    intervention.observe(0, rows, constant_state(4.0))
    intervention.initial_state(1, rows)
    # Eqs. 5 and 6 from mu = var = 0 with batch mean 5 and variance 1: nine tenths of the NEW batch.
    assert intervention.mean_K == pytest.approx(4.5) and intervention.var_K == pytest.approx(0.9)
    intervention.observe(1, rows, constant_state(9.0))
    intervention.initial_state(2, rows)
    # 0.9 * 10 + 0.1 * 4.5 and 0.9 * 1 + 0.1 * 0.9.
    assert intervention.mean_K == pytest.approx(9.45) and intervention.var_K == pytest.approx(0.99)


@pytest.mark.parametrize(("beta", "mean"), [(0.0, 10.0), (1.0, 0.0)])
def test_beta_zero_forgets_the_past_and_beta_one_never_learns(beta: float, mean: float) -> None:
    intervention = fitted(beta=beta)
    for step, value in enumerate((4.0, 9.0)):
        intervention.observe(step, np.arange(ROWS), constant_state(value))
        intervention.initial_state(step + 1, np.arange(ROWS))
    assert intervention.mean_K == pytest.approx(mean)


def test_noise_has_the_fitted_mean_and_standard_deviation_of_its_head() -> None:
    intervention = fitted(beta=0.0)
    rows = np.arange(ROWS)
    vectors = torch.zeros(ROWS, VECTOR.elements)
    _, start, stop = VECTOR.groups()[3]
    generator = torch.Generator().manual_seed(0)
    vectors[:, start:stop] = 2.0 + 0.5 * torch.randn(ROWS, stop - start, generator=generator)
    intervention.observe(0, rows, VECTOR.unpack(vectors))
    state = intervention.initial_state(1, rows)
    assert state is not None
    noise = VECTOR.pack(state)[:, start:stop]
    entries = noise.numel()
    assert abs(float(noise.mean()) - 2.0) < 5 * 0.5 / entries**0.5 + 0.03
    assert abs(float(noise.std()) - 0.5) < 0.03
    assert float(VECTOR.pack(state)[:, stop:].abs().max()) == 0.0, "the other heads never moved"


def test_moments_are_bit_equal_however_the_rows_are_split() -> None:
    found = []
    for groups in ([[0, 1, 2, 3, 4, 5]], [[5], [0, 1], [4, 2, 3]]):
        intervention = fitted(beta=0.1)
        for step in range(3):
            for group in groups:
                intervention.initial_state(step, np.array(group))
                intervention.observe(step, np.array(group), final_state(step, group))
        intervention.initial_state(3, np.arange(ROWS))
        found.append((intervention.mean_K, intervention.var_K))
    assert np.array_equal(found[0][0], found[1][0]) and np.array_equal(found[0][1], found[1][1])


def test_a_row_that_is_not_finite_counts_in_neither_moment() -> None:
    intervention = fitted(beta=0.0)
    state = constant_state(4.0)
    state[0]["recurrent"][1] = torch.nan
    intervention.observe(0, np.arange(ROWS), state)
    intervention.initial_state(1, np.arange(ROWS))
    assert intervention.mean_K == pytest.approx(5.0) and intervention.var_K == pytest.approx(1.0)
