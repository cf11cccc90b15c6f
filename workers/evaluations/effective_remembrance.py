"""Effective Remembrance (arXiv:2507.02782, Definition 3.3): how much the tokens before t still sway what follows T.

EffRem_T(t) = d(q(. | x[0:T]), q(. | x[t:T])): the next-token distribution after a text of T tokens, against the one
after the same text without its first t tokens, read from zero state. All suffixes end with the same tokens, so they are
one growing batch over one stream: at each t of the grid a row in zero state joins, and every row reads the same tokens
from there on. Only the logits of the last position are formed.

Legend: N texts, R rows of a text (suffixes under way), G points of the grid, V vocabulary.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from models.interface import RecurrentLanguageModel, State
from storage.measurements import Measurements
from storage.windows import EvaluationWindow
from workers.context import TrialContext
from workers.evaluations.diagnostics import LeftOut
from workers.evaluations.distances import DISTANCES, probabilities
from workers.evaluations.perplexity import TOKENS_AT_ONCE
from workers.evaluations.sharing import ByWindow, per_window
from workers.settings import TrialConfig

NAME = "effective_remembrance"
LINEAR_POINTS = 32
"""Evenly spaced points of the grid; near T, where the curve rises, the distance to T halves from point to point."""
SHORTEST_STRETCH = 32
"""Tokens that the whole batch reads at a time, at least: a state is read and written once per stretch."""
STATE_BYTES_AT_ONCE = 2**30
"""Bytes of the states of one growing batch, at most, as long as it holds more than one text."""
TEXTS_PER_WINDOW = 2
"""Texts of T tokens cut from a window, where it holds as many."""


def measure(
    model: RecurrentLanguageModel,
    windows: Sequence[EvaluationWindow],
    config: TrialConfig,
    context: TrialContext,
    trained: object = None,
) -> list[Measurements]:
    """`effective_remembrance`: a row per t, means over all texts; `effective_remembrance_by_window`: per window and t.

    Columns: position (t, in tokens) and the distances of `workers.evaluations.distances`, float64. Raises LeftOut where
    a window is shorter than T.
    """
    total = config.eval.remembrance_factor * config.trial.context
    if config.eval.length < total:
        raise LeftOut(
            f"{config.eval.length} positions are fewer than the {total} tokens that it reads: "
            f"eval.remembrance_factor={config.eval.remembrance_factor} times trial.context"
        )
    grid, starts = suffix_starts(total), text_starts(config.eval.length, total)

    def distances(mine: Sequence[EvaluationWindow]) -> ByWindow:
        tokens_NT = torch.cat([_texts(one, starts, total) for one in mine]).to(context.device)
        parts = [distances_of_texts(model, some, grid) for some in tokens_NT.split(texts_at_once(model, len(grid)))]
        found_NG = {name: np.concatenate([part[name] for part in parts]) for name in DISTANCES}
        return {name: found.reshape(len(mine), len(starts), -1).mean(axis=1) for name, found in found_NG.items()}

    found_WG = per_window(windows, context, distances)
    means_G = {name: values.mean(axis=0) for name, values in found_WG.items()}
    about = {"total": total, "train_length": config.trial.context, "windows": len(windows), "texts": len(starts)}
    half = means_G["total_variation"][int(np.searchsorted(grid, total // 2))]
    return [
        Measurements(NAME, {"position": grid, **means_G}, {"total_variation_at_half": float(half)}, about),
        Measurements(f"{NAME}_by_window", _window_columns(windows, grid, found_WG), {}, about),
    ]


def suffix_starts(total: int) -> np.ndarray:
    """(G,) int64 points t, from 0 to `total` - 1, strictly increasing: 32 evenly spaced, more near 0 and near T."""
    even = {step * total // LINEAR_POINTS for step in range(LINEAR_POINTS)}
    spacing = max(1, total // LINEAR_POINTS)
    near_end = {total - 2**power for power in range(spacing.bit_length()) if 2**power < spacing}
    return np.asarray(sorted(even | near_end | {spacing // 4, total // 2, total - 1}), np.int64)


def text_starts(length: int, total: int) -> list[int]:
    """Where the texts of a window begin: evenly spread, without overlap."""
    texts = min(TEXTS_PER_WINDOW, length // total)
    return [number * (length // texts) for number in range(texts)]


def texts_at_once(model: RecurrentLanguageModel, points: int) -> int:
    """Texts that grow in one batch: as many as the bound on their states allows, one at least."""
    activation_bytes = model.head_weight().element_size()
    return max(1, STATE_BYTES_AT_ONCE // (model.dims.state_bytes(activation_bytes) * (points + 1)))


def _texts(window: EvaluationWindow, starts: Sequence[int], total: int) -> Tensor:
    """(N, T) int64 tokens."""
    return torch.from_numpy(np.stack([window.tokens(start, start + total) for start in starts]))


def distances_of_texts(model: RecurrentLanguageModel, tokens_NT: Tensor, grid: np.ndarray) -> dict[str, np.ndarray]:
    """Each distance (N, G), float64, between what follows the whole text and what follows its suffix from each t on.

    The grid begins at 0: its first suffix is the text itself, computed once more as a row of its own.
    """
    probabilities_RNV = probabilities(last_logits(model, tokens_NT, [0, *grid.tolist()]))
    whole_NV, suffixes_GNV = probabilities_RNV[0], probabilities_RNV[1:]
    return {name: distance(whole_NV, suffixes_GNV).T.cpu().numpy() for name, distance in DISTANCES.items()}


@torch.no_grad()
def last_logits(model: RecurrentLanguageModel, tokens_NT: Tensor, starts: Sequence[int]) -> Tensor:
    """Logits (R, N, V) after the texts' last token, of a row per start: the text from there on, from zero state.

    `starts`: 0 first, never decreasing. The logits have the model's dtype.
    """
    last_MD, _ = _grown(model, tokens_NT, starts, tokens_NT.shape[1], SHORTEST_STRETCH)
    return model.head(last_MD).unflatten(0, (len(starts), len(tokens_NT)))


def _grown(
    model: RecurrentLanguageModel, tokens_NT: Tensor, starts: Sequence[int], end: int, shortest: int
) -> tuple[Tensor, State]:
    """Last hidden vectors (R * N, D) and state of the rows of `starts`, each from its start to `end`.

    The stream is read in stretches from one start to another. Rows that start within a stretch grow beside it, in a
    batch of their own, and join at its end: so the many do not stop for each of the few.
    """
    state: State | None = None
    last_MD = torch.empty(0)
    for begin, stop in pairwise([*_bounds(starts, shortest), end]):
        rows = sum(start <= begin for start in starts)
        state = _with_rows(model, state, rows * len(tokens_NT))
        last_MD, state = _read(model, tokens_NT[:, begin:stop], state, rows)
        late = [start for start in starts if begin < start < stop]
        if late:
            late_MD, late_state = _grown(model, tokens_NT, late, stop, 1)
            last_MD, state = torch.cat([last_MD, late_MD]), _joined(state, late_state)
    assert state is not None
    return last_MD, state


def _bounds(starts: Sequence[int], shortest: int) -> list[int]:
    """Those of the starts at which a stretch begins: the first, then each at least `shortest` after the last."""
    bounds = [starts[0]]
    for start in starts:
        if start >= bounds[-1] + shortest:
            bounds.append(start)
    return bounds


def _read(model: RecurrentLanguageModel, tokens_NC: Tensor, state: State, rows: int) -> tuple[Tensor, State]:
    """Last hidden vectors (R * N, D) and state after every row has read the same tokens, a piece at a time."""
    last_MD = torch.empty(0)
    for piece_NC in tokens_NC.split(max(1, TOKENS_AT_ONCE // (rows * len(tokens_NC))), dim=1):
        hidden_MCD, state = model(piece_NC.repeat(rows, 1), state)
        last_MD = hidden_MCD[:, -1]
    return last_MD, state


def _with_rows(model: RecurrentLanguageModel, state: State | None, sequences: int) -> State:
    """The state of so many sequences: those there are, then new ones in zero state."""
    if state is None:
        return model.zero_state(sequences)
    there = next(iter(state[0].values())).shape[0]
    return state if there == sequences else _joined(state, model.zero_state(sequences - there))


def _joined(one: State, other: State) -> State:
    return [
        {name: torch.cat([part, more[name]]) for name, part in layer.items()}
        for layer, more in zip(one, other, strict=True)
    ]


def _window_columns(windows: Sequence[EvaluationWindow], grid: np.ndarray, found_WG: ByWindow) -> ByWindow:
    points = len(grid)
    return {
        "window": np.repeat(np.arange(len(windows)), points),
        "document": np.repeat(np.asarray([window.document_id for window in windows], object), points),
        "position": np.tile(grid, len(windows)),
        **{name: values.ravel() for name, values in found_WG.items()},
    }
