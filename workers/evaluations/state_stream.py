"""The states of evaluation windows at chosen positions: read from zero state in chunks that end there.

The state at position t is the one after t tokens, from which token t is predicted.
Legend: W windows of one pass, P positions of interest.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from models.interface import RecurrentLanguageModel, State
from storage.windows import EvaluationWindow
from workers.evaluations.perplexity import TOKENS_AT_ONCE

FIRST_POSITION = 16
"""Where the ladder of positions begins, as the curves' bins do."""
NEARBY = 8
"""Positions that stand for the neighbourhood of one."""


def positions_of_interest(length: int, train_length: int) -> np.ndarray:
    """(P,) int64, increasing: 16, 24, 32, 48, ... up to `length`, and `train_length`, `length` and half of it.

    Every position of the ladder from 32 on has its half in the ladder, so that growth can be told.
    """
    powers = FIRST_POSITION * 2 ** np.arange(58, dtype=np.int64)
    ladder = np.union1d(powers, powers // 2 * 3)
    positions = np.union1d(ladder, [train_length, length, length // 2])
    return positions[(positions >= 1) & (positions <= length)]


def nearby(positions: np.ndarray) -> np.ndarray:
    """(P, 8) int64: from each position t down to 9/16 t at equal distances, each above t/2; some repeat below 16."""
    steps = np.arange(NEARBY, dtype=np.int64)
    return positions[:, None] - steps * positions[:, None] // (2 * NEARBY)


def passes(windows: Sequence[EvaluationWindow], chunk: int) -> list[Sequence[EvaluationWindow]]:
    """The windows in groups that go through the model together."""
    together = max(1, TOKENS_AT_ONCE // chunk)
    return [windows[first : first + together] for first in range(0, len(windows), together)]


@torch.no_grad()
def stream_states(
    model: RecurrentLanguageModel,
    windows: Sequence[EvaluationWindow],
    positions: np.ndarray,
    chunk: int,
    device: torch.device,
) -> Iterator[tuple[int, State]]:
    """Yield (position, state of all W windows after that many tokens) for each of `positions`, increasing, from 1 on.

    No forward pass takes more than `chunk` tokens of a window. The model is used as it is: put it into evaluation mode.
    """
    state: State | None = None
    at = 0
    for position in positions.tolist():
        while at < position:
            stop = min(position, at + chunk)
            tokens_WC = torch.from_numpy(np.stack([window.tokens(at, stop) for window in windows])).to(device)
            _, state = model(tokens_WC, state)
            at = stop
        assert state is not None, "positions count from 1"
        yield position, state
