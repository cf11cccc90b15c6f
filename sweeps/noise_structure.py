"""noise_structure: from independent noise to real states, one kind of structure after the other."""

from typing import Any

from sweeps.demo_preset import DEMO, SIGMA
from sweeps.paper_preset import PAPER
from sweeps.registry import NamedSweep
from sweeps.settings import Settings
from sweeps.trials import Trial, beside_base

LADDER: tuple[tuple[str, dict[str, Any]], ...] = (
    ("random_noise", {}),
    ("fitted_noise", {}),
    ("shuffled_entries", {}),
    *(("correlated_noise", {"intervention.scope": scope}) for scope in ("head", "layer", "all")),
    ("reservoir", {}),
    ("state_passing", {}),
)
"""One scale; mean and variance of each head; its whole marginal; covariance within a head, a layer, all; real states
of any age; the newest ones."""


def trials(settings: Settings, seeds: list[int]) -> list[Trial]:
    """base once, then zero and the ladder for each seed."""
    return beside_base(settings, seeds, [("zero", {}), *LADDER])


SWEEP = NamedSweep(
    name="noise_structure",
    question="Which property of real states must an initial state have to repair length generalisation?",
    why="The paper's 1.3B model fails with independent noise, and its authors suspect the correlations between "
    "entries.",
    paper_found="Fitted noise keeps the mean and variance of each head, and is enough at 370M and 780M but not at "
    "1.3B; nothing in between was tried.",
    contradicts="Shuffled entries that repair as much as whole states: then marginals are enough.",
    varies="",
    fixed=("intervention.scope",),
    presets={"demo": {**DEMO, "intervention.sigma": SIGMA}, "paper": {**PAPER, "intervention.sigma": SIGMA}},
    trials=trials,
)
