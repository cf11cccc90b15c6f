"""search: Optuna proposes the trials of a space one after another, through Ray Tune. docs/searches.md is its manual.

What Ray's own searcher for Optuna loses is kept here: what is not finite fails, what is stopped early is pruned with
its intermediate values, and a search that was killed goes on without a trial repeated or forgotten.
"""

from sweeps.demo_preset import DEMO
from sweeps.interventions import models
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
    """What the trials of a search are shown beside: of each size the base, and the control as the settings have it.

    Where the sweep trains a base, its trials of the study start from the same.
    """
    listed: list[Trial] = []
    for model in models(settings):
        base = base_trial(settings, seeds[0], model)
        listed += [base, *(post_training(settings, base, "zero", seed, model) for seed in seeds)]
    return listed


SWEEP = NamedSweep(
    name=SEARCH,
    question="Which of many settings together carry a model furthest past its training length?",
    why="Sweeps move one setting at a time; the best scale, share or rate may depend on the others.",
    paper_found="It did not search: one recipe for all interventions, and one scale of noise chosen by hand.",
    contradicts="The best trial of the control is as good as the best trial of any intervention.",
    varies="",
    fixed=("intervention.sigma", "intervention.beta", "intervention.reset_probability"),
    facets=("model.size",),
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
