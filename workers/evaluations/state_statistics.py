"""How large states are, by position: standard deviation, mean and largest magnitude, of the whole and of each head.

The standard deviation of the full state is the paper's Fig. 4, that of single heads its Fig. 9. Moments come from
float64 sums of each window, so the result does not depend on how the windows were shared out.

Legend: W windows, P positions, K heads over all layers, S the sums of `head_sums`.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from models.interface import RecurrentLanguageModel
from storage.measurements import Measurements
from storage.windows import EvaluationWindow
from workers.context import TrialContext
from workers.evaluations.coverage import TrainedOn
from workers.evaluations.diagnostics import LeftOut
from workers.evaluations.head_sums import (
    LARGEST,
    NONFINITE,
    head_sums,
    merge_sums,
    recurrent_entries,
    recurrent_heads,
    std_and_mean,
)
from workers.evaluations.sharing import ByWindow, per_window
from workers.evaluations.state_stream import nearby, passes, positions_of_interest, stream_states
from workers.settings import TrialConfig

GROWTH = 1.05
"""A head still grows at t where its standard deviation near t is more than this times that near t/2.

A head that sums up independent inputs with a memory of tau tokens has the variance 1 - exp(-2t / tau) of its last one.
Without forgetting its standard deviation grows by 41 % when t doubles, and by more than 5 % while tau > t / 3.
"""


def measure(
    model: RecurrentLanguageModel,
    windows: Sequence[EvaluationWindow],
    config: TrialConfig,
    context: TrialContext,
    trained: TrainedOn | None,
) -> list[Measurements]:
    """`state_statistics`, a row per position, and `state_statistics_by_head`, a row per position, layer and head."""
    heads_K2 = np.array(recurrent_heads(model), dtype=np.int64)
    if not len(heads_K2):
        raise LeftOut("the model has no recurrent state")
    positions = positions_of_interest(config.eval.length, config.trial.context)
    sums = per_window(windows, context, partial(_window_sums, model, positions, config.eval.chunk, context))
    at_PKS, near_PKS = merge_sums(sums["at"]), merge_sums(sums["near"])
    growth_PK = head_growth(positions, near_PKS)
    about = {
        "train_length": config.trial.context,
        "windows": len(windows),
        "unit": windows[0].unit,
        "entries": recurrent_entries(model),
        "heads": len(heads_K2),
        "growing_above": GROWTH,
    }
    return [_whole(positions, at_PKS, growth_PK, about), _by_head(positions, at_PKS, growth_PK, heads_K2, about)]


def _window_sums(
    model: RecurrentLanguageModel,
    positions: np.ndarray,
    chunk: int,
    context: TrialContext,
    windows: Sequence[EvaluationWindow],
) -> ByWindow:
    """Sums of each window (W, P, K, S): `at` each position, and `near` it, over all the positions nearby."""
    places_P8 = nearby(positions)
    at: list[np.ndarray] = []
    near: list[np.ndarray] = []
    for some in passes(windows, chunk):
        states = stream_states(model, some, np.unique(places_P8), chunk, context.device)
        found = {position: head_sums(model, state) for position, state in states}
        at.append(np.stack([found[position] for position in positions.tolist()], axis=1))
        near.append(np.stack([merge_sums([found[each] for each in row]) for row in places_P8.tolist()], axis=1))
    return {"at": np.concatenate(at), "near": np.concatenate(near)}


def head_growth(positions: np.ndarray, near_PKS: np.ndarray) -> np.ndarray:
    """(P, K) standard deviation of each head near t in units of that near t/2; NaN where no position is half as far.

    Near t: over all windows and the positions `nearby`, because at a single one the newest tokens decide too much. Half
    as far: the last of the positions up to t/2. What is not finite near t has grown beyond all bounds.
    """
    std_PK, _ = std_and_mean(near_PKS)
    half_P = np.searchsorted(positions, positions // 2, side="right") - 1
    growth_PK = np.full(std_PK.shape, np.nan)
    for index in np.flatnonzero(half_P >= 0):
        growth_PK[index] = _ratio(std_PK[index], std_PK[half_P[index]])
    return growth_PK


def _ratio(far_K: np.ndarray, near_K: np.ndarray) -> np.ndarray:
    """far / near; 1 where both are zero, infinite where `far` is not finite."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio_K = np.where((far_K == 0) & (near_K == 0), 1.0, far_K / near_K)
    return np.where(np.isfinite(far_K), ratio_K, np.inf)


def _whole(positions: np.ndarray, at_PKS: np.ndarray, growth_PK: np.ndarray, about: dict[str, Any]) -> Measurements:
    """A row per position: over all layers, heads, entries and windows."""
    whole_PS = merge_sums(at_PKS.swapaxes(0, 1))
    std_P, mean_P = std_and_mean(whole_PS)
    told_P = (positions > about["train_length"]) & ~np.isnan(growth_PK).any(axis=1)
    share_P = np.where(told_P, (growth_PK > GROWTH).mean(axis=1), np.nan)
    summary = {"std_at_last": std_P[-1]}
    if positions[-1] > about["train_length"]:
        std_at_train = std_P[np.searchsorted(positions, about["train_length"])]
        summary |= {"growing_share_at_last": share_P[-1]}
        summary |= {"std_at_train": std_at_train, "std_ratio": _ratio(std_P[-1:], std_at_train)[0]}
    columns = {
        "position": positions,
        "std": std_P,
        "mean": mean_P,
        "max_abs": whole_PS[:, LARGEST],
        "growing_share": share_P,
        "nonfinite": whole_PS[:, NONFINITE].astype(np.int64),
    }
    return Measurements("state_statistics", columns, {key: float(value) for key, value in summary.items()}, about)


def _by_head(
    positions: np.ndarray, at_PKS: np.ndarray, growth_PK: np.ndarray, heads_K2: np.ndarray, about: dict[str, Any]
) -> Measurements:
    """A row per position, layer and head: over its entries and all windows."""
    std_PK, mean_PK = std_and_mean(at_PKS)
    columns = {
        "position": np.repeat(positions, len(heads_K2)),
        "layer": np.tile(heads_K2[:, 0], len(positions)),
        "head": np.tile(heads_K2[:, 1], len(positions)),
        "std": std_PK.ravel(),
        "mean": mean_PK.ravel(),
        "max_abs": at_PKS[..., LARGEST].ravel(),
        "growth": growth_PK.ravel(),
        "nonfinite": at_PKS[..., NONFINITE].ravel().astype(np.int64),
    }
    return Measurements("state_statistics_by_head", columns, {}, about)
