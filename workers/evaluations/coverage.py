"""Coverage: how far the states at a position are from those that training started from or passed through.

For each layer: the sliced Wasserstein distance along fixed random directions, in units of the standard deviation of the
training states along them. The reported figure is the mean over layers.

Legend: W windows, P positions, n training states, m states near a position, L layers, D directions.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from models.interface import RecurrentLanguageModel
from storage.measurements import Measurements
from storage.windows import EvaluationWindow
from workers.context import TrialContext
from workers.evaluations.diagnostics import LeftOut
from workers.evaluations.projections import DIRECTIONS, Projections
from workers.evaluations.sharing import ByWindow, per_window
from workers.evaluations.sliced_wasserstein import wasserstein
from workers.evaluations.state_stream import nearby, passes, positions_of_interest, stream_states
from workers.evaluations.trained_states import TrainedOn
from workers.settings import TrialConfig

LEAST_SCALE = 1e-12
"""Smallest unit of a layer, for one whose training states are all alike."""


def measure(
    model: RecurrentLanguageModel,
    windows: Sequence[EvaluationWindow],
    config: TrialConfig,
    context: TrialContext,
    trained: TrainedOn | None,
) -> list[Measurements]:
    """`coverage`, a row per position, and `coverage_by_layer`, a row per position and layer."""
    if trained is None or not len(trained.projections):
        raise LeftOut("there are no finite states that training started from or passed through")
    projections = Projections(model, context.device)
    positions = positions_of_interest(config.eval.length, config.trial.context)
    measured = partial(_window_projections, model, projections, positions, config.eval.chunk, context)
    found_WP8LD = per_window(windows, context, measured)["projections"]
    states_PmLD = found_WP8LD.swapaxes(0, 1).reshape(len(positions), -1, *found_WP8LD.shape[3:])
    scale_L = layer_scales(trained.projections)
    distance_PL = np.stack([layer_distances(states, trained.projections, scale_L) for states in states_PmLD])
    about = {
        "train_length": config.trial.context,
        "windows": len(windows),
        "unit": windows[0].unit,
        "states": states_PmLD.shape[1],
        "training_states": len(trained.projections),
        "training_rows": len(np.unique(trained.rows)),
        "training_nonfinite": trained.nonfinite,
        "directions": DIRECTIONS,
        "scales": scale_L.tolist(),
    }
    nonfinite_P = (~np.isfinite(states_PmLD).all(axis=(2, 3))).sum(axis=1)
    return [
        _whole(positions, distance_PL, nonfinite_P, _between_halves(trained, scale_L), about),
        _by_layer(positions, distance_PL, projections.layers, about),
    ]


def _window_projections(
    model: RecurrentLanguageModel,
    projections: Projections,
    positions: np.ndarray,
    chunk: int,
    context: TrialContext,
    windows: Sequence[EvaluationWindow],
) -> ByWindow:
    """(W, P, 8, L, D) float32: each window's states at the positions nearby, of which there are more than windows."""
    places_P8 = nearby(positions)
    distinct, place_P8 = np.unique(places_P8, return_inverse=True)
    parts: list[np.ndarray] = []
    for some in passes(windows, chunk):
        states = stream_states(model, some, distinct, chunk, context.device)
        found = np.stack([projections(state) for _, state in states], axis=1)
        parts.append(found[:, place_P8.reshape(places_P8.shape)])
    return {"projections": np.concatenate(parts)}


def layer_scales(training_nLD: np.ndarray) -> np.ndarray:
    """(L,) float64 root mean square, over the directions, of the standard deviation of the training states."""
    deviation_L = np.sqrt(training_nLD.var(axis=0, dtype=np.float64).mean(axis=1))
    return np.maximum(deviation_L, LEAST_SCALE)


def layer_distances(one_nLD: np.ndarray, other_mLD: np.ndarray, scale_L: np.ndarray) -> np.ndarray:
    """(L,) sliced Wasserstein distance of each layer, in units of its scale; infinite where a state is not finite."""
    distance_LD = wasserstein(_flat(one_nLD), _flat(other_mLD)).reshape(one_nLD.shape[1:])
    return distance_LD.mean(axis=1) / scale_L


def _flat(points_nLD: np.ndarray) -> np.ndarray:
    return points_nLD.reshape(len(points_nLD), -1)


def _between_halves(trained: TrainedOn, scale_L: np.ndarray) -> float | None:
    """The distance between one half of the training's rows and the other: what two samples of one thing differ by."""
    halves = trained.halves()
    return None if halves is None else float(layer_distances(*halves, scale_L).mean())


def _whole(
    positions: np.ndarray,
    distance_PL: np.ndarray,
    nonfinite_P: np.ndarray,
    between_halves: float | None,
    about: dict[str, Any],
) -> Measurements:
    distance_P = distance_PL.mean(axis=1)
    summary = {"at_last": float(distance_P[-1])}
    if positions[-1] >= about["train_length"]:
        summary["at_train"] = float(distance_P[np.searchsorted(positions, about["train_length"])])
    if between_halves is not None:
        summary["between_training_halves"] = between_halves
    columns = {"position": positions, "distance": distance_P, "nonfinite": nonfinite_P.astype(np.int64)}
    return Measurements("coverage", columns, summary, about)


def _by_layer(
    positions: np.ndarray, distance_PL: np.ndarray, layers: tuple[int, ...], about: dict[str, Any]
) -> Measurements:
    columns = {
        "position": np.repeat(positions, len(layers)),
        "layer": np.tile(np.array(layers, dtype=np.int64), len(positions)),
        "distance": distance_PL.ravel(),
    }
    return Measurements("coverage_by_layer", columns, {}, about)
