"""demo_base: the recipe of the shipped bases, small models that fail far past their training length.

Honest training only: bytes of the train split, zero initial states, one finished schedule. What makes the failure
visible at this size are the slow decays that each demo size starts with (docs/architectures.md).
"""

from sweeps.registry import NamedSweep
from sweeps.settings import Settings
from workers.settings import FRESH_BASE, TrialConfig


def trials(settings: Settings, seeds: list[int]) -> list[TrialConfig]:
    """One training run from the initialisation of `base.seed` for each seed of the data order."""
    return [settings.trial_config("zero", seed=seed) for seed in seeds]


SWEEP = NamedSweep(
    name="demo_base",
    question="How is a shipped base made, and how far past its training length does it hold?",
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
