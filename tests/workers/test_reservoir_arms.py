"""Reservoir and correlated noise: draws from a uniform sample of all states, and noise with their covariance."""

import numpy as np
import pytest
import torch

from tests.workers.intervention_makers import ROWS, VECTOR, build, drawn, final_state
from workers.interventions.correlated_noise import CorrelatedNoise

ALL = np.arange(ROWS)
WHOLE = [list(range(ROWS))]


def seen(steps: int) -> np.ndarray:
    """(steps * G, E): all final states before `steps`."""
    return np.concatenate([VECTOR.pack(final_state(step, ALL)).numpy() for step in range(steps)])


def test_a_reservoir_draws_real_states_of_any_step_before() -> None:
    states = drawn(build("reservoir", capacity=100, reset_probability=0.0), "reservoir", WHOLE, range(13))
    ages = []
    for step in range(1, 13):
        equal = (states[step][:, None, :64] == seen(step)[None, :, :64]).all(-1)
        assert (equal.sum(1) == 1).all()
        ages += list(step - 1 - equal.argmax(1) // ROWS)
    # At step s a state is s - 1 - (uniform on 0..s-1) steps old: with 72 draws over 12 steps the mean is 2.75.
    expected = np.mean([(step - 1) / 2 for step in range(1, 13)])
    assert abs(np.mean(ages) - expected) < 5 * np.std(ages) / len(ages) ** 0.5


def test_a_small_reservoir_holds_no_more_than_its_capacity() -> None:
    states = drawn(build("reservoir", capacity=2, reset_probability=0.0), "reservoir", WHOLE, range(6))
    for step in range(1, 6):
        assert len(np.unique(states[step][:, :64], axis=0)) <= 2


def test_a_reservoirs_draws_are_reset_like_passed_states() -> None:
    states = drawn(build("reservoir", capacity=8, reset_probability=0.3), "reservoir", WHOLE, range(101))
    zero = (states[1:] == 0).all(axis=2)
    assert abs(zero.mean() - 0.3) < 5 * (0.3 * 0.7 / zero.size) ** 0.5


def noise_over(scope: str, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """(draws, E) of correlated noise from a reservoir that holds exactly the states (n, E) of step 0, and these."""
    intervention = build("correlated_noise", capacity=ROWS, scope=scope)
    assert isinstance(intervention, CorrelatedNoise)
    intervention.observe(0, ALL, final_state(0, ALL))
    draws = []
    for seed in range(steps):
        object.__setattr__(intervention.context, "seed", seed)
        state = intervention.initial_state(1, ALL)
        assert state is not None
        draws.append(VECTOR.pack(state).numpy())
    return np.concatenate(draws), seen(1)


@pytest.mark.parametrize(("scope", "across_heads", "across_layers"), [("head", 0, 0), ("layer", 1, 0), ("all", 1, 1)])
def test_noise_has_the_covariance_of_the_states_within_its_scope_and_none_beyond(
    scope: str, across_heads: int, across_layers: int
) -> None:
    noise, states = noise_over(scope, 400)
    half = VECTOR.elements // 2
    # Eight entries of head 0, of head 5 and of the second layer.
    picked = np.r_[0:8, 5 * 1024 : 5 * 1024 + 8, half : half + 8]
    covariance = np.cov(states[:, picked].T, bias=True)
    found = np.cov(noise[:, picked].T, bias=True)
    kept = np.kron(
        [[1, across_heads, across_layers], [across_heads, 1, across_layers], [across_layers, across_layers, 1]],
        np.ones((8, 8)),
    )
    expected = covariance * kept
    error = np.sqrt((np.outer(np.diag(covariance), np.diag(covariance)) + covariance**2) / len(noise))
    assert (np.abs(found - expected) < 5.5 * error).all()
    assert (
        np.abs(noise[:, picked].mean(0) - states[:, picked].mean(0)) < 5 * np.sqrt(np.diag(covariance) / 2400)
    ).all()


def test_noise_is_mean_plus_weighted_deviations() -> None:
    intervention = build("correlated_noise", capacity=ROWS, scope="all")
    assert isinstance(intervention, CorrelatedNoise)
    intervention.observe(0, ALL, final_state(0, ALL))
    state = intervention.initial_state(1, np.array([3]))
    assert state is not None
    noise = VECTOR.pack(state)[0].double()
    held = intervention.mirror.states(1).double()
    deviations = (held - held.mean(0)).T
    coefficients = torch.linalg.lstsq(deviations, (noise - held.mean(0))[:, None]).solution
    rebuilt = held.mean(0) + (deviations @ coefficients)[:, 0]
    assert torch.allclose(rebuilt, noise, atol=1e-5)


def test_noise_of_a_row_is_bit_equal_in_any_company() -> None:
    intervention = build("correlated_noise", capacity=ROWS, scope="all")
    intervention.observe(0, ALL, final_state(0, ALL))
    together = VECTOR.pack(intervention.initial_state(1, ALL) or [])
    for row in ALL:
        assert torch.equal(VECTOR.pack(intervention.initial_state(1, np.array([row])) or [])[0], together[row])
