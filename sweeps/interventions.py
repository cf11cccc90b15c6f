"""interventions: every way to draw the initial state side by side, each once, beside the control and the base."""

from typing import Any

from sweeps.paper_preset import PAPER, require_published
from sweeps.registry import NamedSweep
from sweeps.settings import Settings
from workers.settings import TrialConfig

SIGMA = 0.1
"""The best scale of random noise on the demo base, see the sweep noise_scale."""

VARIANTS: dict[str, tuple[dict[str, Any], ...]] = {
    "random_noise": ({},),
    "fitted_noise": ({},),
    "state_passing": ({},),
    "tbtt": ({},),
    "longer_context": ({},),
    "reservoir": ({},),
    "correlated_noise": ({"scope": "head"}, {"scope": "layer"}, {"scope": "all"}),
    "shuffled_entries": ({},),
    "mixture": ({},),
}
"""The arms beside the base and the control, and the settings in which their trials differ."""


def trials(settings: Settings, seeds: list[int]) -> list[TrialConfig]:
    """base once, then zero and the arms, or those of `sweep.arms`, for each seed."""
    require_published(settings)
    chosen = [arm for arm in VARIANTS if not settings.sweep.arms or arm in settings.sweep.arms]
    configs = [settings.trial_config("base", seed=seeds[0])]
    for seed in seeds:
        configs.append(settings.trial_config("zero", seed=seed))
        for arm in chosen:
            configs += [settings.trial_config(arm, seed=seed, **variant) for variant in VARIANTS[arm]]
    return configs


SWEEP = NamedSweep(
    name="interventions",
    question="Which way of drawing the initial state repairs length generalisation, and by how much?",
    varies="",
    fixed=("intervention.scope",),
    arms=("base", "zero", *VARIANTS),
    presets={
        "demo": {"intervention.sigma": SIGMA, "trial.rows": 24, "eval.select_windows": 6, "eval.apart_windows": 2},
        "paper": {**PAPER, "intervention.sigma": SIGMA},
    },
    trials=trials,
)
