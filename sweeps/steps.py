"""steps: how much post-training it takes, with state passing and in the control."""

import itertools

from sweeps.demo_preset import DEMO
from sweeps.paper_preset import PAPER
from sweeps.registry import NamedSweep
from sweeps.settings import Settings
from sweeps.trials import Trial, beside_base, swept

NAME = "trial.steps"
ARMS = ("zero", "state_passing")
STEPS = (10.0, 30.0, 100.0, 300.0, 1000.0)


def trials(settings: Settings, seeds: list[int]) -> list[Trial]:
    """base once, then zero and state passing for every number of steps and each seed."""
    return beside_base(settings, seeds, itertools.product(ARMS, [{NAME: steps} for steps in swept(settings, NAME)]))


SWEEP = NamedSweep(
    name="steps",
    question="How many post-training steps does the repair take, and is it state passing or the steps that repair?",
    why="The promise is a repair for a fraction of a per cent of the training; each number of steps has a finished "
    "schedule of its own, and a control.",
    paper_found="100 steps of 0.5M tokens (0.02 % of the training) repair Mamba-2, 500 are used elsewhere; they are "
    "not compared.",
    contradicts="A control that catches up with state passing when it is given more steps.",
    varies=NAME,
    presets={
        "demo": {**DEMO, "sweep.values": STEPS},
        "paper": {**PAPER, "sweep.values": (10.0, 30.0, 100.0, 500.0, 1000.0)},
    },
    trials=trials,
)
