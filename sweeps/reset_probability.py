"""reset_probability: how often a carried state is replaced by zero, from never to always."""

import itertools

from sweeps.demo_preset import DEMO
from sweeps.paper_preset import PAPER
from sweeps.registry import NamedSweep
from sweeps.settings import Settings
from sweeps.trials import Trial, beside_base

PROBABILITIES = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
ARMS = ("state_passing", "tbtt")


def trials(settings: Settings, seeds: list[int]) -> list[Trial]:
    """base once, then zero, and both arms at every probability for each seed."""
    resets = [{"intervention.reset_probability": probability} for probability in settings.sweep.values]
    return beside_base(settings, seeds, [("zero", {}), *itertools.product(ARMS, resets)])


SWEEP = NamedSweep(
    name="reset_probability",
    question="How often should a carried state be reset to zero?",
    why="Resets keep the model used to the zero state that every evaluation starts from; too many leave the states "
    "as unexplored as before. At 1 state passing is the control, step for step.",
    paper_found="It uses 0.1 and does not vary it.",
    contradicts="State passing at 1 that differs from the control (then the instrument is wrong), or no price for "
    "never resetting at the first positions.",
    varies="intervention.reset_probability",
    presets={"demo": {**DEMO, "sweep.values": PROBABILITIES}, "paper": {**PAPER, "sweep.values": PROBABILITIES}},
    trials=trials,
)
