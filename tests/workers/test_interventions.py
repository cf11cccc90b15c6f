"""The contract that every arm keeps. What an arm promises beyond it is tested in `test_<arm>.py`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.interface import State
from tests.workers.intervention_makers import MODEL, ROWS, VECTOR, build, drawn, final_state, open_bank
from workers.arms import ARMS

ARM_SETTINGS: list[Any] = [
    pytest.param("zero", {}, id="zero"),
    pytest.param("longer_context", {}, id="longer_context"),
    pytest.param("random_noise", {"sigma": 0.3}, id="random_noise"),
    pytest.param("fitted_noise", {}, id="fitted_noise"),
    pytest.param("state_passing", {"reset_probability": 0.3}, id="state_passing"),
    pytest.param("state_passing", {"reset_by": "batch", "reset_probability": 0.5}, id="state_passing-batch"),
    pytest.param("state_passing", {"passing": "permuted"}, id="state_passing-permuted"),
    pytest.param("shuffled_entries", {}, id="shuffled_entries"),
    pytest.param("tbtt", {"reset_probability": 0.3}, id="tbtt"),
    pytest.param("reservoir", {"capacity": 8}, id="reservoir"),
    pytest.param("correlated_noise", {"capacity": 8, "scope": "head"}, id="correlated_noise-head"),
    pytest.param("correlated_noise", {"capacity": 8, "scope": "layer"}, id="correlated_noise-layer"),
    pytest.param("correlated_noise", {"capacity": 8, "scope": "all"}, id="correlated_noise-all"),
    pytest.param("mixture", {}, id="mixture"),
    pytest.param("mixture", {"mixture": ("fitted_noise", "reservoir")}, id="mixture-of-noise-and-reservoir"),
]
WHOLE = [list(range(ROWS))]
PIECES = [[4, 5], [0, 1, 2], [3]]
every_arm = pytest.mark.parametrize(("arm", "settings"), ARM_SETTINGS)


def test_every_arm_that_trains_is_in_this_suite() -> None:
    assert {parameters.values[0] for parameters in ARM_SETTINGS} == {arm.name for arm in ARMS.values() if arm.trains}


@every_arm
def test_initial_states_do_not_depend_on_how_rows_are_grouped(arm: str, settings: dict[str, Any]) -> None:
    whole = drawn(build(arm, **settings), arm, WHOLE, range(4))
    assert np.array_equal(whole, drawn(build(arm, **settings), arm, PIECES, range(4)))


@every_arm
def test_another_seed_gives_other_states_unless_there_is_nothing_to_draw(arm: str, settings: dict[str, Any]) -> None:
    one, other = (drawn(build(arm, seed=seed, **settings), arm, WHOLE, range(6)) for seed in (1, 2))
    assert np.array_equal(one, other) == (arm in ("zero", "longer_context"))


@every_arm
def test_the_first_step_starts_from_zero_except_under_random_noise(arm: str, settings: dict[str, Any]) -> None:
    assert (drawn(build(arm, **settings), arm, WHOLE, range(1)) == 0).all() == (arm != "random_noise")


@every_arm
def test_only_the_parts_asked_for_are_touched_and_no_gradient_reaches_them(arm: str, settings: dict[str, Any]) -> None:
    intervention = build(arm, **settings)
    rows = np.arange(ROWS)
    for step in range(2):
        state = intervention.initial_state(step, rows)
        intervention.observe(step, rows, final_state(step, rows))
    for layer in state or []:
        assert layer["recurrent"].dtype == torch.float32 and not layer["recurrent"].requires_grad
        assert bool((layer["conv"] == 0).all()) == (arm != "tbtt")


@every_arm
def test_what_a_checkpoint_keeps_continues_bit_for_bit(arm: str, settings: dict[str, Any], tmp_path: Path) -> None:
    whole = drawn(build(arm, **settings), arm, WHOLE, range(6))

    bank = open_bank(arm, **settings)
    stopped = build(arm, bank=bank, **settings)
    first = drawn(stopped, arm, PIECES, range(3))
    stopped.prepare_snapshot()
    bank.snapshot(tmp_path)
    kept = json.dumps(stopped.state_dict())

    restored = open_bank(arm, **settings)
    restored.restore(tmp_path)
    resumed = build(arm, bank=restored, **settings)
    resumed.load_state_dict(json.loads(kept))
    second = drawn(resumed, arm, WHOLE, range(3, 6))
    assert np.array_equal(whole, np.concatenate([first, second]))


@every_arm
def test_a_final_state_that_is_not_finite_leaves_no_trace_but_zeros(arm: str, settings: dict[str, Any]) -> None:
    intervention = build(arm, **settings)
    rows = np.arange(ROWS)
    for step in range(4):
        state = intervention.initial_state(step, rows)
        for layer in state or []:
            assert all(bool(torch.isfinite(part).all()) for part in layer.values())
        observed = final_state(step, rows)
        observed[0]["recurrent"][2, 0, 0, 0] = torch.nan
        observed[1]["recurrent"][4, 3, 1, 1] = torch.inf
        intervention.observe(step, rows, observed)


def test_the_initial_state_moves_the_gradient_of_the_decays_but_takes_none() -> None:
    intervention = build("state_passing", reset_probability=0.0)
    rows = np.arange(ROWS)
    intervention.observe(0, rows, final_state(0, rows))
    gradients: list[torch.Tensor] = []
    states: list[State | None] = [None, intervention.initial_state(1, rows)]
    for state in states:
        MODEL.zero_grad()
        hidden, _ = MODEL(torch.arange(ROWS * 8).view(ROWS, 8), state)
        hidden.square().sum().backward()
        decay = dict(MODEL.named_parameters())["backbone.layers.0.mixer.A_log"].grad
        assert decay is not None
        gradients.append(decay.clone())
    assert not torch.allclose(gradients[0], gradients[1])
    assert all(not part.requires_grad for layer in states[1] or [] for part in layer.values())


def test_base_has_no_intervention() -> None:
    with pytest.raises(ValueError, match="does not train"):
        build("base")


def test_every_sigma_scales_the_same_normals_and_they_are_those_of_fitted_noise() -> None:
    def noise(sigma: float) -> np.ndarray:
        state = build("random_noise", sigma=sigma).initial_state(1, np.arange(ROWS))
        assert state is not None
        return VECTOR.pack(state).numpy()

    assert np.allclose(noise(0.2), 2 * noise(0.1), rtol=1e-6)
    assert abs(noise(0.5).std() - 0.5) < 0.01
    fitted = drawn(build("fitted_noise"), "fitted_noise", WHOLE, range(2))[1]
    assert np.corrcoef(fitted.ravel(), noise(1.0).ravel())[0, 1] > 0.999
