"""What the preset `demo` of the sweeps shares: minutes on two cores, bytes of the shipped text, small models."""

from typing import Any

from workers.settings import FRESH_BASE

DEMO: dict[str, Any] = {
    "trial.rows": 24,
    "eval.select_windows": 6,
    "eval.apart_windows": 2,
    "eval.diagnostic_length": 8192,
}
"""Half the base's rows, and few windows beside those of the report."""

SIGMA = 0.1
"""The best scale of random noise on the shipped Mamba-2 base, see the sweep noise_scale."""

FROM_SCRATCH: dict[str, Any] = {
    **DEMO,
    "base.checkpoint": FRESH_BASE,
    "trial.steps": 330,
    "trial.rows": 48,
    "trial.checkpoint_every": 110,
    "optimizer.peak_lr": 3e-3,
    "optimizer.min_lr": 1.5e-4,
}
"""A million tokens from a fresh initialisation, on the recipe of the shipped bases."""
