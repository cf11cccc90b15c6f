"""demo_base: the recipe of the shipped bases, small models that fail far past their training length.

Honest training only: bytes of the train split, zero initial states, one finished schedule. What makes the failure
visible at this size are the slow decays that each demo size starts with (docs/architectures.md).
"""

from sweeps.registry import NamedSweep
from sweeps.settings import Settings
from sweeps.trials import Trial, check_fresh
from workers.settings import FRESH_BASE


def trials(settings: Settings, seeds: list[int]) -> list[Trial]:
    """One training run from the initialisation of `base.seed` for each seed of the data order."""
    check_fresh(settings)
    return [Trial(config=settings.trial_config("zero", seed=seed)) for seed in seeds]


SWEEP = NamedSweep(
    name="demo_base",
    question="How is a shipped base made, and how far past its training length does it hold?",
    why="Whoever doubts a base can make it again.",
    paper_found="Nothing at this size.",
    contradicts="A base that holds: then there is nothing to repair.",
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
