"""learning_rate: the peak rate of post-training, for the control, noise and state passing."""

import itertools

from sweeps.demo_preset import DEMO, SIGMA
from sweeps.paper_preset import PAPER
from sweeps.registry import NamedSweep
from sweeps.settings import Settings
from sweeps.trials import Trial, beside_base

NAME = "optimizer.peak_lr"
RATES = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
FINAL_SHARE = 1 / 20
"""The last step's rate, as a share of the peak."""
ARMS = ("zero", "random_noise", "state_passing")


def trials(settings: Settings, seeds: list[int]) -> list[Trial]:
    """base once, then each arm at every rate for each seed."""
    rates = [{NAME: rate, "optimizer.min_lr": rate * FINAL_SHARE} for rate in settings.sweep.values]
    return beside_base(settings, seeds, itertools.product(ARMS, rates))


SWEEP = NamedSweep(
    name="learning_rate",
    question="Which peak rate suits each arm, and does the comparison of arms depend on it?",
    why="Arms compared at one rate may be compared at a rate that suits one of them.",
    paper_found="A tenth of the base's peak rate for every arm; it is not varied.",
    contradicts="An order of the arms that turns with the rate.",
    varies=NAME,
    fixed=("optimizer.min_lr",),
    presets={
        "demo": {**DEMO, "intervention.sigma": SIGMA, "sweep.values": RATES},
        "paper": {**PAPER, "intervention.sigma": SIGMA, "sweep.values": RATES},
    },
    trials=trials,
)
