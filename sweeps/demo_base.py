"""demo_base: the recipe of the shipped base, a small Mamba-2 that fails far past its training length.

Honest training only: bytes of the train split, zero initial states, one finished schedule. What makes the failure
visible at this size is the slow decay that the model starts with (A from [0.02, 0.5] instead of [1, 16]).
"""

from sweeps.registry import NamedSweep
from sweeps.settings import Settings
from workers.settings import FRESH_BASE, TrialConfig


def trials(settings: Settings, seeds: list[int]) -> list[TrialConfig]:
    """One training run from the initialisation of `base.seed` for each seed of the data order."""
    return [settings.trial_config("zero", seed=seed) for seed in seeds]


SWEEP = NamedSweep(
    name="demo_base",
    question="How is the shipped base made, and how far past its training length does it hold?",
    varies="",
    presets={
        "demo": {
            "base.checkpoint": FRESH_BASE,
            "trial.steps": 2000,
            "trial.checkpoint_every": 100,
            "optimizer.peak_lr": 3e-3,
            "optimizer.min_lr": 1.5e-4,
            "eval.every": 200,
        },
    },
    trials=trials,
)
