"""beta: how slowly fitted noise follows the final states, beside the control and state passing."""

from sweeps.demo_preset import DEMO
from sweeps.paper_preset import PAPER
from sweeps.registry import NamedSweep
from sweeps.settings import Settings
from sweeps.trials import Trial, beside_base

BETAS = (0.0, 0.1, 0.5, 0.9, 0.99)
"""Weight of the old mean and variance: from the newest batch alone to an average over a hundred steps."""


def trials(settings: Settings, seeds: list[int]) -> list[Trial]:
    """base once, then zero, every beta and state passing for each seed."""
    betas = [("fitted_noise", {"intervention.beta": beta}) for beta in settings.sweep.values]
    return beside_base(settings, seeds, [("zero", {}), *betas, ("state_passing", {})])


SWEEP = NamedSweep(
    name="beta",
    question="How fast should fitted noise follow the final states?",
    why="The paper's rule gives the new batch the weight 1 - beta = 0.9, the opposite of the usual habit; slower "
    "averages are less noisy but lag behind a model that is being trained.",
    paper_found="It uses 0.1 and does not vary it.",
    contradicts="Large differences between 0 and 0.5: then the one value that the paper used would matter.",
    varies="intervention.beta",
    presets={"demo": {**DEMO, "sweep.values": BETAS}, "paper": {**PAPER, "sweep.values": BETAS}},
    trials=trials,
)
