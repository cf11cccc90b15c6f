"""The contract of interventions, and what each arm promises beyond it."""

import numpy as np
import pytest
import torch

from models.interface import State
from models.registry import build_model
from models.settings import ModelSettings
from storage.bank.in_process import InProcessBank
from storage.bank.layout import BankLayout
from workers.arms import ARMS
from workers.interventions import Intervention, InterventionContext, build_intervention
from workers.settings import InterventionSettings
from workers.state_vector import StateVector

MODEL = build_model(ModelSettings(), 256, seed=0)
VECTOR = StateVector(MODEL.state_spec(), ["recurrent"])
ROWS = 6
TRAINING_ARMS = [arm.name for arm in ARMS.values() if arm.trains]


def build(arm: str, **settings: float) -> Intervention:
    bank = InProcessBank(BankLayout(rows=ROWS, elements=VECTOR.elements)) if ARMS[arm].uses_bank else None
    context = InterventionContext(
        settings=InterventionSettings(**settings),  # type: ignore[arg-type]
        vector=VECTOR,
        zero_state=MODEL.zero_state,
        rows=ROWS,
        seed=7,
        bank=bank,
    )
    return build_intervention(arm, context)


def final_state(step: int, rows: np.ndarray) -> State:
    """A final state that depends on step and row alone, so that different groupings of rows can be compared."""
    vectors = np.stack([np.random.default_rng([step, row]).standard_normal(VECTOR.elements) for row in rows])
    return VECTOR.unpack(vectors.astype(np.float32), MODEL.zero_state(len(rows)))


def drawn(arm: str, groups: list[list[int]], steps: int = 3) -> np.ndarray:
    """Initial states (steps, G, E) when rows come in these groups."""
    intervention = build(arm, sigma=0.3)
    out = np.zeros((steps, ROWS, VECTOR.elements), np.float32)
    for step in range(steps):
        for group in groups:
            state = intervention.initial_state(step, np.array(group))
            out[step, group] = 0 if state is None else VECTOR.pack(state)
            intervention.observe(step, np.array(group), final_state(step, np.array(group)))
    return out


@pytest.mark.parametrize("arm", TRAINING_ARMS)
def test_initial_states_do_not_depend_on_how_rows_are_grouped(arm: str) -> None:
    whole = drawn(arm, [[0, 1, 2, 3, 4, 5]])
    assert np.array_equal(whole, drawn(arm, [[4, 5], [0, 1, 2], [3]]))


@pytest.mark.parametrize("arm", TRAINING_ARMS)
def test_only_the_recurrent_part_is_touched_and_in_fp32(arm: str) -> None:
    intervention = build(arm, sigma=0.3, reset_probability=0.0)
    for step in range(2):
        state = intervention.initial_state(step, np.arange(ROWS))
        intervention.observe(step, np.arange(ROWS), final_state(step, np.arange(ROWS)))
    for layer in state or []:
        assert layer["recurrent"].dtype == torch.float32 and not layer["recurrent"].requires_grad
        assert (layer["conv"] == 0).all()


@pytest.mark.parametrize("arm", TRAINING_ARMS)
def test_state_dict_survives_a_resume(arm: str) -> None:
    intervention = build(arm)
    build(arm).load_state_dict(intervention.state_dict())


def test_zero_is_always_zero() -> None:
    assert (drawn("zero", [list(range(ROWS))]) == 0).all()


def test_every_sigma_scales_the_same_normals() -> None:
    def noise(sigma: float) -> np.ndarray:
        state = build("random_noise", sigma=sigma).initial_state(5, np.arange(ROWS))
        assert state is not None
        return VECTOR.pack(state)

    assert np.allclose(noise(0.2), 2 * noise(0.1), rtol=1e-6)
    assert abs(noise(0.5).std() - 0.5) < 0.01


def test_state_passing_hands_on_the_final_state_of_the_step_before() -> None:
    intervention = build("state_passing", reset_probability=0.0)
    rows = np.arange(ROWS)
    first = intervention.initial_state(0, rows)
    assert first is not None and (VECTOR.pack(first) == 0).all()
    for step in range(3):
        intervention.observe(step, rows, final_state(step, rows))
        passed = intervention.initial_state(step + 1, rows)
        assert passed is not None and np.array_equal(VECTOR.pack(passed), VECTOR.pack(final_state(step, rows)))


def test_state_passing_resets_rows_with_the_given_probability() -> None:
    def zero_rows(probability: float) -> int:
        intervention = build("state_passing", reset_probability=probability)
        rows = np.arange(ROWS)
        zeros = 0
        for step in range(50):
            intervention.observe(step, rows, final_state(step, rows))
            state = intervention.initial_state(step + 1, rows)
            assert state is not None
            zeros += int((VECTOR.pack(state) == 0).all(axis=1).sum())
        return zeros

    assert zero_rows(0.0) == 0 and zero_rows(1.0) == 50 * ROWS
    # 300 draws: five standard deviations around 30.
    assert abs(zero_rows(0.1) - 30) < 5 * (300 * 0.1 * 0.9) ** 0.5


def test_the_passed_state_moves_the_loss_gradient_but_takes_none() -> None:
    intervention = build("state_passing", reset_probability=0.0)
    rows = np.arange(ROWS)
    intervention.observe(0, rows, final_state(0, rows))
    model = build_model(ModelSettings(), 256, seed=0)
    gradients: list[torch.Tensor] = []
    states: list[State | None] = [None, intervention.initial_state(1, rows)]
    for state in states:
        model.zero_grad()
        hidden, _ = model(torch.arange(ROWS * 8).view(ROWS, 8), state)
        hidden.square().sum().backward()
        decay = dict(model.named_parameters())["backbone.layers.0.mixer.A_log"].grad
        assert decay is not None
        gradients.append(decay.clone())
    assert not torch.allclose(gradients[0], gradients[1])
    assert all(not part.requires_grad for layer in states[1] or [] for part in layer.values())


def test_base_has_no_intervention() -> None:
    with pytest.raises(ValueError, match="does not train"):
        build("base")
