"""The states that training started from, taken from whole small trials."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.architecture import RECURRENT
from models.interface import RecurrentLanguageModel
from models.registry import ARCHITECTURES
from storage.settings import BankSettings
from storage.token_cache import open_token_cache
from tests.workers.evaluations.byte_models import byte_model
from workers.arms import ARMS
from workers.context import TrialContext
from workers.evaluations.projections import Projections
from workers.evaluations.trained_states import TrainedOn, trained_on, training_states
from workers.settings import TrialConfig
from workers.training_windows import training_order
from workers.trial import Training, _post_train, load_base

TrialMaker = Callable[..., TrialConfig]
ContextMaker = Callable[..., TrialContext]
STATES = 5
"""Of each row: where it starts, and four on its way."""
SLOW_ARMS = [pytest.param(arm, marks=pytest.mark.slow) for arm in ("tbtt", "reservoir", "longer_context")]


@pytest.fixture
def covered_trial(small_trial: TrialMaker) -> TrialMaker:
    """A small trial of a tiny model that is to be measured for `coverage`."""

    def make(arm: str, **groups: Any) -> TrialConfig:
        evaluation = {"diagnostics": ("coverage",), **groups.pop("eval", {})}
        return small_trial(arm, **{"model": {"size": "tiny"}, "eval": evaluation, **groups})

    return make


def post_train(config: TrialConfig, context: TrialContext) -> tuple[RecurrentLanguageModel, Training]:
    cache = open_token_cache(config.data, context.cache)
    return _post_train(config, context, cache, load_base(config, context.device))


def states_of(training: Training) -> TrainedOn:
    assert training.trained_on is not None
    return training.trained_on


def starts(trained: TrainedOn) -> np.ndarray:
    """(rows, L, D): where each row starts."""
    return trained.projections[::STATES]


@pytest.mark.parametrize("arm", [arm.name for arm in ARMS.values() if arm.trains])
def test_every_arm_says_what_it_trained_on(arm: str, covered_trial: TrialMaker, make_context: ContextMaker) -> None:
    config = covered_trial(arm, intervention={"sigma": 0.5, "reset_probability": 0.0, "capacity": 8})
    trained = states_of(post_train(config, make_context())[1])
    rows = config.batch_rows
    assert trained.projections.shape == (STATES * rows, 2, 64) and trained.projections.dtype == np.float32
    assert trained.rows.tolist() == np.repeat(np.arange(rows), STATES).tolist() and trained.nonfinite == 0
    from_zero = (starts(trained) == 0).all(axis=(1, 2))
    # A mixture draws one of `zero` and state passing here.
    assert from_zero.all() if arm in ("zero", "longer_context") else not from_zero.all()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_states_are_those_of_the_quarters_of_the_windows(architecture: str) -> None:
    model = byte_model(architecture, torch.float32)
    projections = Projections(model, torch.device("cpu"))
    windows_BT = torch.randint(256, (3, 10), generator=torch.Generator().manual_seed(0))
    state = model.zero_state(3)
    for layer in state:
        layer[RECURRENT].fill_(0.1)
    found = training_states(model, projections, np.array([4, 5, 9]), windows_BT, state)
    assert found.rows.tolist() == [4, 5, 9] * STATES
    np.testing.assert_array_equal(found.projections[:3], projections(state))
    for quarter, tokens in enumerate((2, 5, 7, 10), start=1):
        with torch.no_grad():
            right = projections(model(windows_BT[:, :tokens], state)[1])
        np.testing.assert_allclose(found.projections[3 * quarter : 3 * quarter + 3], right, rtol=1e-3, atol=1e-5)


def test_the_untouched_base_starts_its_first_windows_from_zero(
    covered_trial: TrialMaker, make_context: ContextMaker
) -> None:
    config, context = covered_trial("base"), make_context()
    batches = training_order(config, open_token_cache(config.data, context.cache))
    model = load_base(config, context.device)
    trained = trained_on(config, context, model, batches, None)
    assert trained is not None and (starts(trained) == 0).all() and model.training
    windows_BT1 = torch.from_numpy(batches.windows(0, np.arange(6)))
    with torch.no_grad():
        right = Projections(model, context.device)(model(windows_BT1[:, :-1])[1])
    np.testing.assert_allclose(trained.projections[4::STATES], right, rtol=1e-3, atol=1e-6)


def test_both_modes_of_the_bank_give_the_same_states(covered_trial: TrialMaker, make_context: ContextMaker) -> None:
    found = []
    for mode in ("everything", "resident"):
        config = covered_trial("state_passing", trial={"micro_rows": 2}, intervention={"passing": "permuted"})
        object.__setattr__(config, "bank", BankSettings(mode=mode))
        found.append(states_of(post_train(config, make_context(mode))[1]))
    assert np.array_equal(found[0].projections, found[1].projections)


def test_micro_batches_give_the_same_states(covered_trial: TrialMaker, make_context: ContextMaker) -> None:
    found = [
        states_of(post_train(covered_trial("tbtt", trial={"micro_rows": rows}), make_context(f"micro-{rows}"))[1])
        for rows in (6, 2)
    ]
    assert np.array_equal(found[0].rows, found[1].rows)
    scale = np.abs(found[0].projections).max()
    np.testing.assert_allclose(found[0].projections, found[1].projections, rtol=0, atol=1e-3 * scale)


@pytest.mark.parametrize("arm", ["state_passing", "fitted_noise", *SLOW_ARMS])
def test_a_trial_that_was_stopped_after_its_last_step_gives_the_same(
    arm: str, covered_trial: TrialMaker, make_context: ContextMaker
) -> None:
    config, context = covered_trial(arm, intervention={"capacity": 8}), make_context()
    first, again = (states_of(post_train(config, context)[1]) for _ in range(2))
    assert np.array_equal(first.projections, again.projections) and np.array_equal(first.rows, again.rows)


@pytest.mark.parametrize("arm", ["state_passing", "fitted_noise", *SLOW_ARMS])
def test_asking_disturbs_nothing_that_is_recorded(
    arm: str, covered_trial: TrialMaker, make_context: ContextMaker
) -> None:
    kept: list[Any] = []
    for diagnostics in ((), ("coverage",)):
        config = covered_trial(arm, intervention={"capacity": 8}, eval={"diagnostics": diagnostics})
        model, training = post_train(config, make_context("-".join(["trial", *diagnostics])))
        assert (training.trained_on is None) == (not diagnostics)
        kept.append((training.bank, training.intervention, [entry["loss"] for entry in training.history]))
        kept.append([parameter.detach().clone() for parameter in model.parameters()])
    assert kept[0] == kept[2]
    assert all(torch.equal(one, other) for one, other in zip(kept[1], kept[3], strict=True))


def test_a_model_of_bf16_is_measured_in_fp32_and_put_back(
    covered_trial: TrialMaker, make_context: ContextMaker
) -> None:
    config = covered_trial("tbtt", trial={"precision": "bf16"}, intervention={"reset_probability": 0.0})
    model, training = post_train(config, make_context())
    kept = model.fp32_parameters()
    assert {p.dtype for name, p in model.named_parameters() if name in kept} == {torch.float32}
    assert {p.dtype for name, p in model.named_parameters() if name not in kept} == {torch.bfloat16}
    assert np.isfinite(states_of(training).projections).all() and (starts(states_of(training)) != 0).any()


def test_at_most_64_rows_are_run_spread_over_all(covered_trial: TrialMaker, make_context: ContextMaker) -> None:
    config, context = covered_trial("base", rows=130, trial={"micro_rows": 13}), make_context()
    batches = training_order(config, open_token_cache(config.data, context.cache))
    trained = trained_on(config, context, load_base(config, context.device), batches, None)
    assert trained is not None
    rows = np.unique(trained.rows)
    assert len(rows) == 64 and rows[0] == 0 and rows[-1] == 129 and np.diff(rows).max() <= 3


def test_states_that_are_not_finite_are_left_out_and_counted() -> None:
    model = byte_model("mamba2", torch.float32)
    state = model.zero_state(2)
    state[1][RECURRENT][0] = torch.inf
    found = training_states(
        model, Projections(model, torch.device("cpu")), np.arange(2), torch.zeros(2, 8, dtype=torch.int64), state
    )
    assert found.nonfinite == STATES and found.rows.tolist() == [1] * STATES
    assert np.isfinite(found.projections).all()


def some_states(rows: int) -> TrainedOn:
    """Three states of each row; projections of one layer and direction that tell them apart."""
    return TrainedOn(np.arange(3.0 * rows).reshape(-1, 1, 1), np.repeat(np.arange(rows), 3), 1)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=7))
def test_merged_parts_do_not_show_how_rows_were_shared_out(worker_of_row: list[int]) -> None:
    whole = some_states(len(worker_of_row))
    owner = np.array(worker_of_row)[whole.rows]
    parts = [TrainedOn(whole.projections[owner == n], whole.rows[owner == n], 1) for n in range(4)]
    merged = TrainedOn.merged(parts)
    assert np.array_equal(merged.projections, whole.projections) and np.array_equal(merged.rows, whole.rows)
    assert merged.nonfinite == 4


def test_halves_keep_a_row_together() -> None:
    halves = some_states(5).halves()
    assert halves is not None
    assert halves[0].ravel().tolist() == [0, 1, 2, 6, 7, 8, 12, 13, 14]
    assert halves[1].ravel().tolist() == [3, 4, 5, 9, 10, 11]
    assert some_states(1).halves() is None
