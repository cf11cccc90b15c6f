"""model_size: base, control and state passing over sizes of one architecture."""

from sweeps.demo_preset import DEMO
from sweeps.interventions import models
from sweeps.paper_preset import AT_SIZE, PAPER
from sweeps.registry import NamedSweep
from sweeps.settings import Settings
from sweeps.trials import Changes, Trial, beside_base
from workers.settings import TRAINED_BASE


def trials(settings: Settings, seeds: list[int]) -> list[Trial]:
    """For each size: base once, then zero and state passing for each seed."""
    arms: list[tuple[str, Changes]] = [("zero", {}), ("state_passing", {})]
    return [trial for model in models(settings) for trial in beside_base(settings, seeds, arms, model)]


SWEEP = NamedSweep(
    name="model_size",
    question="Do larger models fail earlier past their training length, and does state passing repair them all?",
    why="A larger state reaches further beyond what training has shown it.",
    figure="Fig. 1b",
    paper_found="Published Mamba-2 models trained at 2048: at 8K 130M and 370M have lost 14 and 42 % of their best "
    "perplexity, 780M and 1.3B are off the chart; 500 steps of state passing keep all of them flat to 128K.",
    contradicts="Larger models that hold further than smaller ones, or a size that state passing does not repair.",
    varies="",
    facets=("model.size",),
    chooses=("sizes",),
    presets={
        "demo": {**DEMO, "base.checkpoint": TRAINED_BASE, "sweep.sizes": ("demo-64", "demo", "demo-192")},
        "paper": {**PAPER, **AT_SIZE, "trial.steps": 500, "sweep.sizes": ("130m", "370m", "780m", "1.3b")},
    },
    trials=trials,
)
