"""Truncated backpropagation through time: h_{-1} is the final state of the text just before (paper, section 4.5).

A row reads on and on in its text, so every part of the state is carried and the gradient is cut between windows.
"""

from collections.abc import Callable

import numpy as np

from workers.interventions.contract import InterventionContext
from workers.interventions.passing import Passing


class TruncatedBackpropagation(Passing):
    """Passing in place over ordered windows; reset with `reset_probability`, and where a document begins."""

    def __init__(self, context: InterventionContext, document_starts: Callable[[int, np.ndarray], np.ndarray]) -> None:
        super().__init__(context)
        self.document_starts = document_starts

    def resets(self, step: int, rows: np.ndarray) -> np.ndarray:
        drawn = super().resets(step, rows)
        if self.context.settings.document_end == "carry":
            return drawn
        return drawn | self.document_starts(step, rows)


def build(context: InterventionContext) -> TruncatedBackpropagation:
    """The intervention of the arm `tbtt`."""
    if context.document_starts is None:
        raise ValueError("TBTT needs windows that follow one another")
    return TruncatedBackpropagation(context, context.document_starts)
