from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from models.architecture import RECURRENT
from models.checkpoints import load_checkpoint
from models.registry import ARCHITECTURES
from models.shipped import checkpoint_folder
from storage.measurements import Measurements
from tests.workers.evaluations.byte_models import byte_model, report_windows
from workers.context import TrialContext
from workers.evaluations.head_sums import head_sums, merge_sums, recurrent_heads, std_and_mean
from workers.evaluations.state_statistics import head_growth, measure
from workers.settings import TrialConfig
from workers.shapes import model_dims
from workers.state_vector import StateVector

TrialMaker = Callable[..., TrialConfig]
ContextMaker = Callable[..., TrialContext]
TINY = byte_model("mamba2", torch.float32)
HEADS = len(recurrent_heads(TINY)) // TINY.dims.n_layer


def sums_of(values: np.ndarray) -> np.ndarray:
    """(K, S) as `head_sums` makes them, of the numbers (K, n) of K heads."""
    state = TINY.zero_state(1)
    state[0][RECURRENT] = torch.from_numpy(values).reshape(1, HEADS, 1, -1)
    return head_sums(TINY, state)[0, :HEADS]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_tables_are_those_of_all_entries_side_by_side(
    architecture: str, small_trial: TrialMaker, make_context: ContextMaker
) -> None:
    model, context = byte_model(architecture, torch.float32), make_context()
    config = small_trial("base", eval={"windows": 3, "chunk": 20})
    windows = report_windows(context.cache, config.eval.length, config.eval.windows)
    whole, by_head = measure(model, windows, config, context, None)
    vector = StateVector(model.state_spec(), [RECURRENT])
    heads = vector.groups()
    for index, position in enumerate(whole.position):
        tokens = torch.from_numpy(np.stack([window.tokens(0, int(position)) for window in windows]))
        with torch.no_grad():
            states = vector.pack(model(tokens)[1]).numpy().astype(np.float64)
        right = [states.std(), states.mean(), np.abs(states).max()]
        found = [whole.columns[name][index] for name in ("std", "mean", "max_abs")]
        assert found == pytest.approx(right, rel=1e-4, abs=1e-5 * states.std())
        rows = slice(index * len(heads), (index + 1) * len(heads))
        right_std = [states[:, start:stop].std() for _, start, stop in heads]
        assert by_head.columns["std"][rows] == pytest.approx(right_std, rel=1e-3)
        names = zip(by_head.columns["layer"][rows], by_head.columns["head"][rows], strict=True)
        assert [f"{layer}.recurrent.{head}" for layer, head in names] == [name for name, _, _ in heads]
    assert whole.columns["nonfinite"].sum() == 0 and whole.about["entries"] == vector.elements


@given(st.integers(1, 5).flatmap(lambda n: arrays(np.float64, (n, 2, 6), elements=st.floats(-9, 9))))
def test_sums_merge_to_the_moments_of_the_union(values: np.ndarray) -> None:
    filled = np.repeat(values, HEADS, axis=1)[:, :HEADS]
    std, mean = std_and_mean(merge_sums([sums_of(each) for each in filled]))
    union = filled.swapaxes(0, 1).reshape(HEADS, -1)
    np.testing.assert_allclose(std, union.std(axis=1), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(mean, union.mean(axis=1), rtol=1e-6, atol=1e-9)


def near_sums(stds: np.ndarray) -> np.ndarray:
    """(P, K, S) sums of two numbers each, -std and std."""
    total = np.zeros_like(stds)
    return np.stack([total + 2, total, 2 * stds**2, stds, total], axis=-1)


def test_growth_compares_with_half_the_distance() -> None:
    positions = np.array([16, 24, 32, 48, 64, 100])
    stds = np.stack([np.sqrt(positions), np.full(6, 3.0), np.zeros(6)], axis=1)
    stds[5, 2] = np.nan
    growth = head_growth(positions, near_sums(stds))
    assert np.isnan(growth[:2]).all(), "nothing lies half as far as 16 and 24"
    np.testing.assert_allclose(growth[2:5, 0], 2**0.5)
    assert growth[5, 0] == pytest.approx((100 / 48) ** 0.5), "50 is no position of the table: the last one before it"
    assert (growth[2:, 1] == 1).all() and (growth[2:5, 2] == 1).all()
    assert growth[5, 2] == np.inf, "what is not finite has grown beyond all bounds"


def test_the_shipped_base_grows_past_its_training_length(small_trial: TrialMaker, make_context: ContextMaker) -> None:
    context = make_context()
    config = small_trial("base", trial={"context": 64}, eval={"length": 2048, "chunk": 512})
    model = load_checkpoint(checkpoint_folder("demo-mamba2"), model_dims(config)).eval()
    whole, by_head = measure(
        model, report_windows(context.cache, config.eval.length, config.eval.windows), config, context, None
    )
    assert whole.summary["std_ratio"] > 1.5
    assert whole.summary["std_ratio"] == whole.summary["std_at_last"] / whole.summary["std_at_train"]
    share = whole.columns["growing_share"]
    assert np.isnan(share[whole.position <= 64]).all()
    last = by_head.columns["growth"][by_head.position == 2048]
    assert share[-1] == whole.summary["growing_share_at_last"] == (last > 1.05).mean() > 0.2


def test_without_positions_past_the_training_length_growth_is_not_told(
    small_trial: TrialMaker, make_context: ContextMaker
) -> None:
    context = make_context()
    config = small_trial("base", eval={"length": 32})
    whole, _ = measure(
        byte_model("mamba2", torch.float32),
        report_windows(context.cache, config.eval.length, config.eval.windows),
        config,
        context,
        None,
    )
    assert set(whole.summary) == {"std_at_last"} and np.isnan(whole.columns["growing_share"]).all()


def of_layer(table: Measurements, column: str, layer: int) -> np.ndarray:
    return table.columns[column][table.columns["layer"] == layer]


def test_states_that_are_not_finite_stay_visible(small_trial: TrialMaker, make_context: ContextMaker) -> None:
    context, model = make_context(), byte_model("mamba2", torch.float32)
    config = small_trial("base")
    with torch.no_grad():
        last = [parameter for name, parameter in model.named_parameters() if "layers.1." in name]
        last[0].fill_(torch.nan)
    whole, by_head = measure(
        model, report_windows(context.cache, config.eval.length, config.eval.windows), config, context, None
    )
    assert np.isfinite(of_layer(by_head, "std", 0)).all() and np.isnan(of_layer(by_head, "std", 1)).all()
    assert np.isnan(whole.columns["std"]).all() and np.isnan(whole.columns["max_abs"]).all()
    assert whole.columns["nonfinite"].tolist() == [2 * whole.about["entries"] // 2] * len(whole.position)
    assert whole.summary["growing_share_at_last"] >= 0.5
