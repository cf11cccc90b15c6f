"""noise_scale: random initial states from far too small to far too large, beside the control and state passing."""

from sweeps.demo_preset import DEMO
from sweeps.paper_preset import PAPER
from sweeps.registry import NamedSweep
from sweeps.settings import Settings
from sweeps.trials import Trial, beside_base

SIGMAS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Standard deviations around that of the demo base's state: 0.03 after 256 bytes, 0.09 after 8K."""


def trials(settings: Settings, seeds: list[int]) -> list[Trial]:
    """base once, then zero, every sigma and state passing for each seed."""
    sigmas = [("random_noise", {"intervention.sigma": sigma}) for sigma in settings.sweep.values]
    return beside_base(settings, seeds, [("zero", {}), *sigmas, ("state_passing", {})])


SWEEP = NamedSweep(
    name="noise_scale",
    question="Which scale of random initial states repairs length generalisation, and does state passing beat it?",
    why="Random noise is the cheapest intervention, but one scale must suit all layers and heads.",
    figure="Fig. 12",
    paper_found="For a model of 125M a scale that is too small repairs nothing, and one that is too large raises "
    "perplexity; the scales themselves are not given.",
    contradicts="Every scale repairs as much, or the best scale does as well as state passing.",
    varies="intervention.sigma",
    presets={
        "demo": {**DEMO, "sweep.values": SIGMAS},
        # The states of the published models are larger: their standard deviation is 1 to 2.
        "paper": {**PAPER, "sweep.values": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)},
    },
    trials=trials,
)
