from collections.abc import Callable

import numpy as np
import pytest
import torch

from models.interface import RecurrentLanguageModel
from models.registry import ARCHITECTURES
from storage.measurements import Measurements
from storage.token_cache import open_token_cache
from tests.workers.evaluations.byte_models import byte_model, report_windows
from workers.context import TrialContext
from workers.evaluations.coverage import layer_distances, layer_scales, measure
from workers.evaluations.diagnostics import LeftOut
from workers.evaluations.trained_states import TrainedOn, trained_on
from workers.settings import TrialConfig
from workers.training_windows import training_order
from workers.trial import load_base

TrialMaker = Callable[..., TrialConfig]
ContextMaker = Callable[..., TrialContext]


def normals(size: int, seed: int, scales: tuple[float, ...] = (1.0, 20.0)) -> np.ndarray:
    """(size, 2, 64): a layer of small states and a layer of large ones."""
    return np.random.default_rng(seed).normal(size=(size, 2, 64)) * np.array(scales)[:, None]


def measured(
    config: TrialConfig, context: TrialContext, model: RecurrentLanguageModel
) -> tuple[Measurements, Measurements]:
    """The two tables of an untouched model."""
    batches = training_order(config, open_token_cache(config.data, context.cache))
    trained = trained_on(config, context, model, batches, None)
    whole, by_layer = measure(
        model, report_windows(context.cache, config.eval.length, config.eval.windows), config, context, trained
    )
    return whole, by_layer


def test_a_layers_unit_is_the_deviation_of_its_training_states() -> None:
    np.testing.assert_allclose(layer_scales(normals(4000, 0)), [1.0, 20.0], rtol=0.02)
    assert (layer_scales(np.ones((5, 2, 64))) == 1e-12).all()


def test_a_shift_by_deviations_is_so_far_in_every_layer() -> None:
    training = normals(300, 0)
    shifted = training + np.array([0.5, 10.0])[:, None]
    scale = layer_scales(training)
    np.testing.assert_allclose(layer_distances(shifted, training, scale), 0.5, rtol=0.05)
    assert (layer_distances(training, training[::-1], scale) == 0).all()


def test_two_samples_of_one_thing_are_close_and_of_two_are_not() -> None:
    training = normals(300, 0)
    scale = layer_scales(training)
    assert (layer_distances(normals(300, 1), training, scale) < 0.12).all()
    assert (layer_distances(3 * normals(300, 1), training, scale) > 1.4).all(), "2 sqrt(2 / pi) = 1.6 deviations"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_gets_both_tables(
    architecture: str, small_trial: TrialMaker, make_context: ContextMaker
) -> None:
    size = {"architecture": architecture, "size": "tiny"}
    config, context = small_trial("base", model=size, eval={"diagnostics": ("coverage",)}), make_context()
    whole, by_layer = measured(config, context, load_base(config, context.device))
    assert whole.position.tolist() == [16, 24, 32, 48, 64, 96, 128]
    assert np.isfinite(whole.columns["distance"]).all() and (whole.columns["distance"] > 0).all()
    layers = len(np.unique(by_layer.columns["layer"]))
    np.testing.assert_allclose(
        by_layer.columns["distance"].reshape(-1, layers).mean(axis=1), whole.columns["distance"], rtol=1e-12
    )
    assert whole.summary["at_train"] == whole.columns["distance"][2]
    assert whole.summary["at_last"] == whole.columns["distance"][-1]
    assert 0 < whole.summary["between_training_halves"] < 1
    assert whole.about["training_states"] == 30 and whole.about["states"] == 16


def test_the_shipped_base_leaves_what_it_was_trained_on(small_trial: TrialMaker, make_context: ContextMaker) -> None:
    context = make_context()
    evaluation = {"length": 2048, "chunk": 512, "diagnostics": ("coverage",)}
    config = small_trial("base", rows=24, trial={"context": 64}, eval=evaluation)
    object.__setattr__(config.base, "checkpoint", "demo-mamba2")
    whole, _ = measured(config, context, load_base(config, context.device).eval())
    assert whole.summary["at_last"] > 2 * whole.summary["at_train"] > 2 * whole.summary["between_training_halves"]


def test_the_unit_of_the_states_does_not_matter() -> None:
    training, states = normals(40, 0), normals(16, 1)
    scaled = layer_distances(1000 * states, 1000 * training, layer_scales(1000 * training))
    np.testing.assert_allclose(scaled, layer_distances(states, training, layer_scales(training)), rtol=1e-12)


def test_states_that_are_not_finite_are_infinitely_far_and_counted(
    small_trial: TrialMaker, make_context: ContextMaker
) -> None:
    config, context = small_trial("base"), make_context()
    trained = TrainedOn(normals(30, 0).astype(np.float32), np.repeat(np.arange(6), 5), 0)
    model = byte_model("mamba2", torch.float32)
    with torch.no_grad():
        next(iter(model.parameters())).fill_(torch.nan)
    whole, by_layer = measure(
        model, report_windows(context.cache, config.eval.length, config.eval.windows), config, context, trained
    )
    assert (whole.columns["distance"] == np.inf).all() and (by_layer.columns["distance"] == np.inf).all()
    assert (whole.columns["nonfinite"] == 16).all()


def test_without_training_states_there_is_no_coverage(small_trial: TrialMaker, make_context: ContextMaker) -> None:
    config, context = small_trial("base"), make_context()
    nothing = TrainedOn(np.zeros((0, 2, 64), np.float32), np.zeros(0, np.int64), 30)
    for trained in (None, nothing):
        with pytest.raises(LeftOut, match="no finite states"):
            measure(
                byte_model("mamba2", torch.float32),
                report_windows(context.cache, config.eval.length, config.eval.windows),
                config,
                context,
                trained,
            )
