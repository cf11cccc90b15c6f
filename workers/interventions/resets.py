"""Which carried states are replaced by zero: with `reset_probability`, by row or by batch."""

import numpy as np

from workers.intervention_settings import InterventionSettings
from workers.randomness import keyed_uniforms


def reset_rows(settings: InterventionSettings, seed: int, step: int, rows: np.ndarray) -> np.ndarray:
    """(len(rows),) bool, keyed by (seed, step, row); with `reset_by=batch` by (seed, step), all rows alike."""
    # No row has the number -1: a batch's draw is nobody's own.
    keys = np.array([-1]) if settings.reset_by == "batch" else rows
    reset: np.ndarray = keyed_uniforms("reset", seed, step, keys) < settings.reset_probability
    return np.broadcast_to(reset, len(rows))
