"""warmup: the share of the steps spent on warm-up, when training from scratch or after it."""

import itertools

from sweeps.demo_preset import DEMO, FROM_SCRATCH
from sweeps.paper_preset import BASE_RATES, PAPER, tokens_of_text
from sweeps.registry import NamedSweep
from sweeps.settings import Settings
from sweeps.trials import Trial, beside_base, from_scratch
from workers.settings import FRESH_BASE

SHARES = (0.01, 0.05, 0.1, 0.25, 0.5)
NAME = "optimizer.warmup_share"


def trials(settings: Settings, seeds: list[int]) -> list[Trial]:
    """Every share, once for each seed: from scratch, or in the control and state passing after a base."""
    shares = [{NAME: share} for share in settings.sweep.values]
    if settings.sweep.stage == "pretrain":
        return [from_scratch(settings, seed, share) for seed in seeds for share in shares]
    return beside_base(settings, seeds, itertools.product(("zero", "state_passing"), shares))


SWEEP = NamedSweep(
    name="warmup",
    question="Does a longer warm-up of the learning rate help or harm length generalisation?",
    why="Warm-up decides how long a model is trained at rates that can still move its decays.",
    figure="Fig. 11",
    paper_found="A Mamba-2 of 45M, trained on 9B tokens at a context of 1024, is worse beyond its context with 25 % "
    "warm-up than with 10 %.",
    contradicts="Longer warm-up that generalises better in length, or as well.",
    varies=NAME,
    seeds_of="base.seed and trial.seed from scratch, trial.seed after a base",
    presets={"demo": {"sweep.values": SHARES}, "paper": {**PAPER, "sweep.values": SHARES}},
    stages={
        "demo": {"pretrain": FROM_SCRATCH, "posttrain": DEMO},
        "paper": {
            # 9B tokens in steps of 0.5M.
            "pretrain": {
                "model.size": "45m",
                "base.checkpoint": FRESH_BASE,
                "trial.context": 1024,
                "trial.rows": 512,
                "trial.steps": 17_166,
                "data.max_tokens": tokens_of_text(9_000_000_000),
                "trial.checkpoint_every": 500,
                "optimizer.peak_lr": BASE_RATES["45m"],
            },
            "posttrain": {},
        },
    },
    trials=trials,
)
