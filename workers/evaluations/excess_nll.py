"""Excess NLL: the same tokens scored with all of their history, minus with only the last T to 2 T tokens of it.

T is the training length. A model that gets by with what it saw in training loses little by a short history, and gains
by a long one; a positive excess is what the long history costs it. Both scores are of the same tokens, so a difference
between positions is no difference between texts.

Legend: W windows, L positions of a window, K blocks of one pass, T training length.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from models.interface import RecurrentLanguageModel
from models.loss import token_nll
from storage.curves import RANGE_8K, bin_edges
from storage.measurements import Measurements
from storage.windows import EvaluationWindow
from workers.context import TrialContext
from workers.evaluations.diagnostics import LeftOut
from workers.evaluations.perplexity import TOKENS_AT_ONCE, stream_nll
from workers.evaluations.sharing import ByWindow, per_window
from workers.settings import TrialConfig

NAME = "excess_nll"


def measure(
    model: RecurrentLanguageModel,
    windows: Sequence[EvaluationWindow],
    config: TrialConfig,
    context: TrialContext,
    trained: object = None,
) -> list[Measurements]:
    """`excess_nll`: a row per bin beyond 2 T; `excess_nll_by_window`: a row per window and bin, with NLL sums.

    NLL in nats per token, sums in float64. Raises LeftOut where a window does not reach beyond 2 T.
    """
    length, train_length = config.eval.length, config.trial.context
    if length <= 2 * train_length:
        raise LeftOut(f"{length} positions do not reach beyond twice trial.context={train_length}")
    edges = excess_edges(length, train_length)

    def sums(mine: Sequence[EvaluationWindow]) -> ByWindow:
        whole_WL = whole_history_nll(model, mine, length, config.eval.chunk, context.device)
        short_WL = np.stack([short_history_nll(model, one, length, train_length, context.device) for one in mine])
        return {"whole": bin_sums(whole_WL, edges), "short": bin_sums(short_WL, edges)}

    found = per_window(windows, context, sums)
    about = {"train_length": train_length, "windows": len(windows), "edges": edges.tolist()}
    return [
        _by_position(found, edges, {**about, "documents": len({window.document_id for window in windows})}),
        _by_window(found, edges, windows, about),
    ]


def excess_edges(length: int, train_length: int) -> np.ndarray:
    """(B + 1,) int64: 2 T, then the edges of the curves' bins beyond it, the last of them `length`."""
    edges = bin_edges(length, train_length)
    return np.concatenate([[2 * train_length], edges[edges > 2 * train_length]])


def whole_history_nll(
    model: RecurrentLanguageModel, windows: Sequence[EvaluationWindow], length: int, chunk: int, device: torch.device
) -> np.ndarray:
    """(W, L) float64 NLL of positions 1 to L in nats, each with everything before it."""
    together = max(1, TOKENS_AT_ONCE // chunk)
    passes = [windows[first : first + together] for first in range(0, len(windows), together)]
    return np.concatenate([_joined(stream_nll(model, some, length, chunk, device)) for some in passes])


def _joined(chunks: Iterator[tuple[int, np.ndarray]]) -> np.ndarray:
    return np.concatenate([nll_WC.astype(np.float64) for _, nll_WC in chunks], axis=1)


@torch.no_grad()
def short_history_nll(
    model: RecurrentLanguageModel, window: EvaluationWindow, length: int, train_length: int, device: torch.device
) -> np.ndarray:
    """(L,) float64 NLL of positions 1 to L in nats, each with the tokens of its own block of T and of the one before.

    Position b T + j (j from 1 to T) is scored from zero state with the T + j tokens before it; in the first block,
    which has none before it, with all j.
    """
    tokens = torch.from_numpy(window.tokens(0, length + 1)).to(device)
    first = token_nll(model(tokens[None, :train_length])[0], tokens[None, 1 : train_length + 1], model)
    scored = [first.flatten()]
    full = length // train_length - 1
    together = max(1, TOKENS_AT_ONCE // (2 * train_length))
    for block in range(0, full, together):
        starts_K1 = torch.arange(block, min(full, block + together), device=device)[:, None] * train_length
        read_KT = tokens[starts_K1 + torch.arange(2 * train_length + 1, device=device)]
        scored.append(_second_part(model, read_KT, train_length).flatten())
    if length % train_length:
        scored.append(_second_part(model, tokens[None, full * train_length :], train_length).flatten())
    return torch.cat(scored).double().cpu().numpy()


def _second_part(model: RecurrentLanguageModel, read_KT: torch.Tensor, skipped: int) -> torch.Tensor:
    """NLL of what follows the first `skipped` inputs, each row from zero state."""
    hidden_KTD, _ = model(read_KT[:, :-1])
    return token_nll(hidden_KTD[:, skipped:], read_KT[:, skipped + 1 :], model)


def bin_sums(nll_WL: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """(W, B) sums over the positions (edge, next edge]; position 1 is column 0, the last edge is L."""
    return np.add.reduceat(nll_WL.astype(np.float64), edges[:-1], axis=1)


def _by_position(found: ByWindow, edges: np.ndarray, about: dict[str, object]) -> Measurements:
    windows, count_B = len(found["whole"]), np.diff(edges)
    whole_B, short_B = (found[name].sum(axis=0) / (windows * count_B) for name in ("whole", "short"))
    low, high = far_range(edges)
    far = slice(int(np.searchsorted(edges, low)), int(np.searchsorted(edges, high)))
    difference = (found["whole"] - found["short"])[:, far].sum() / (windows * count_B[far].sum())
    columns = {
        "position": edges[1:],
        "excess_nll": whole_B - short_B,
        "whole_nll": whole_B,
        "short_nll": short_B,
        "count": windows * count_B,
    }
    return Measurements(NAME, columns, {"far_excess": float(difference)}, {**about, "far": [low, high]})


def far_range(edges: np.ndarray) -> tuple[int, int]:
    """Positions (low, high] of the summary: those of PPL@8K, or else the last octave that is measured."""
    if edges[0] <= RANGE_8K[0] and edges[-1] >= RANGE_8K[1]:
        return RANGE_8K
    return int(edges[:-1][edges[:-1] <= max(edges[0], edges[-1] // 2)][-1]), int(edges[-1])


def _by_window(
    found: ByWindow, edges: np.ndarray, windows: Sequence[EvaluationWindow], about: dict[str, object]
) -> Measurements:
    bins = len(edges) - 1
    columns = {
        "window": np.repeat(np.arange(len(windows)), bins),
        "document": np.repeat(np.asarray([window.document_id for window in windows], object), bins),
        "position": np.tile(edges[1:], len(windows)),
        "whole_nll_sum": found["whole"].ravel(),
        "short_nll_sum": found["short"].ravel(),
        "count": np.tile(np.diff(edges), len(windows)),
    }
    return Measurements(f"{NAME}_by_window", columns, {}, about)
