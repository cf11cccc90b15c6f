"""search: Optuna proposes the trials of a space one after another, through Ray Tune. docs/searches.md is its manual.

What Ray's own searcher for Optuna loses is kept here: what is not finite fails, what is stopped early is pruned with
its intermediate values, and a search that was killed goes on without a trial repeated or forgotten.
"""

from sweeps.demo_preset import DEMO
from sweeps.paper_preset import PAPER
from sweeps.registry import NamedSweep
from sweeps.settings import SEARCH, Settings
from sweeps.trials import Trial, base_trial, post_training

ARMS = ("zero", "random_noise", "fitted_noise", "state_passing", "tbtt")
"""The arms of the space `full`: the paper's four, and the control, whose settings deserve the same search."""

_SEARCHED = {
    # A rate that stays at its peak until the end, so that trials can be compared, and stopped, at any step.
    "optimizer.schedule": "wsd",
    "eval.apart_windows": 0,
    "eval.diagnostic_windows": 0,
}


def references(settings: Settings, seeds: list[int]) -> list[Trial]:
    """What the trials of a search are shown beside: the base, and the control with the settings as they are."""
    base = base_trial(settings, seeds[0])
    return [base, *(post_training(settings, base, "zero", seed) for seed in seeds)]


SWEEP = NamedSweep(
    name=SEARCH,
    question="Which of many settings together carry a model furthest past its training length?",
    why="Sweeps move one setting at a time; the best scale, share or rate may depend on the others.",
    paper_found="It did not search: one recipe for all interventions, and one scale of noise chosen by hand.",
    contradicts="The best trial of the control is as good as the best trial of any intervention.",
    varies="",
    fixed=("intervention.sigma", "intervention.beta", "intervention.reset_probability"),
    chooses=("sizes",),
    arms=ARMS,
    presets={
        "demo": {
            **DEMO,
            **_SEARCHED,
            "eval.every": 20,
            "eval.length": 8192,
            "eval.windows": 12,
            "eval.select_windows": 6,
        },
        "paper": {**PAPER, **_SEARCHED, "eval.every": 20},
    },
    trials=references,
)
