"""interventions: every way to draw the initial state side by side, each once, beside the control and the base."""

from typing import Any

from sweeps.demo_preset import DEMO, SIGMA
from sweeps.paper_preset import AT_SIZE, PAPER, post_training_rate
from sweeps.registry import NamedSweep
from sweeps.settings import Settings
from sweeps.trials import Trial, beside_base

VARIANTS: dict[str, tuple[dict[str, Any], ...]] = {
    "random_noise": ({},),
    "fitted_noise": ({},),
    "state_passing": ({},),
    "tbtt": ({},),
    "longer_context": ({},),
    "reservoir": ({},),
    "correlated_noise": tuple({"intervention.scope": scope} for scope in ("head", "layer", "all")),
    "shuffled_entries": ({},),
    "mixture": ({},),
}
"""The arms beside the base and the control, and the settings in which their trials differ."""


def trials(settings: Settings, seeds: list[int]) -> list[Trial]:
    """For each size: base once, then zero and the arms, or those of `sweep.arms`, for each seed."""
    chosen = [arm for arm in VARIANTS if not settings.sweep.arms or arm in settings.sweep.arms]
    arms = [("zero", {}), *((arm, one) for arm in chosen for one in VARIANTS[arm])]
    return [trial for model in models(settings) for trial in beside_base(settings, seeds, arms, model)]


def models(settings: Settings) -> list[dict[str, Any]]:
    """What changes from size to size: the size itself and its learning rate."""
    sizes = settings.sweep.sizes or (settings.model.size,)
    return [{"model.size": size, "optimizer.peak_lr": post_training_rate(settings, size)} for size in sizes]


SWEEP = NamedSweep(
    name="interventions",
    question="Which way of drawing the initial state repairs length generalisation, and by how much?",
    why="The paper compares four ways with the untouched base; the same steps from zero state, and ways that lie "
    "between independent noise and real states, say which part of the repair is whose.",
    figure="Fig. 5",
    paper_found="After 100 steps TBTT is a little better than state passing, both hold to 32K at every size; fitted "
    "noise holds at 370M and 780M and fails at 1.3B; random noise helps at 370M only.",
    contradicts="The steps from zero state repair as much as state passing, or shuffled entries as much as whole "
    "states.",
    varies="",
    fixed=("intervention.scope",),
    facets=("model.size",),
    chooses=("sizes",),
    arms=("base", "zero", *VARIANTS),
    presets={
        "demo": {**DEMO, "intervention.sigma": SIGMA},
        "paper": {**PAPER, **AT_SIZE, "intervention.sigma": SIGMA, "sweep.sizes": ("370m", "780m", "1.3b")},
    },
    trials=trials,
)
