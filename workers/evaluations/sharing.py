"""Evaluation windows shared out over the workers of a trial, and what was measured put back in the windows' order."""

from collections.abc import Callable, Sequence

import numpy as np

from storage.windows import EvaluationWindow
from workers.context import TrialContext

ByWindow = dict[str, np.ndarray]
"""Arrays by name, the window axis first."""


def per_window(
    windows: Sequence[EvaluationWindow],
    context: TrialContext,
    measure: Callable[[Sequence[EvaluationWindow]], ByWindow],
) -> ByWindow:
    """What `measure` finds of each window, for all windows in their order, whole on every worker.

    `measure(mine)` is called once on a worker with windows of its own, and not at all on one without; there must be a
    window. It has to find of a window what it would find without the others.
    """
    mine = windows[context.rank :: context.world]
    parts = [part for part in context.gather(measure(mine) if mine else None) if part is not None]
    if len(parts) == 1:
        return parts[0]
    order = dealt_order([len(next(iter(part.values()))) for part in parts])
    return {name: np.concatenate([part[name] for part in parts])[order] for name in parts[0]}


def dealt_order(counts: Sequence[int]) -> np.ndarray:
    """Index that puts windows, laid end to end worker by worker, back in the order in which they were dealt out.

    `counts`: windows of each worker that got one. They are dealt one by one, so only the last workers have none.
    """
    workers = len(counts)
    return np.argsort(np.concatenate([np.arange(count) * workers + n for n, count in enumerate(counts)]))
