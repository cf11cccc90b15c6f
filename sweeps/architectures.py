"""architectures: base, control and state passing over the recurrences."""

from typing import Any

from sweeps.demo_preset import DEMO
from sweeps.paper_preset import BASE_RATES, CONTEXTS, PAPER, of_paper, tokens_of_text, untouched
from sweeps.registry import NamedSweep
from sweeps.settings import Settings
from sweeps.trials import Changes, Trial, beside_base

PAPER_SIZES = {"mamba1": "130m", "mamba2": "130m", "gla": "70m", "rwkv6": "70m"}


def trials(settings: Settings, seeds: list[int]) -> list[Trial]:
    """For each architecture: base once, then zero and state passing for each seed."""
    arms: list[tuple[str, Changes]] = [("zero", {}), ("state_passing", {})]
    models = [_model(settings, name) for name in settings.sweep.architectures or (settings.model.architecture,)]
    return [trial for model in models for trial in beside_base(settings, seeds, arms, model)]


def _model(settings: Settings, architecture: str) -> dict[str, Any]:
    """What changes with the architecture: on the paper's recipe also size, context and rows, unless one is chosen."""
    own = {"model.architecture": architecture}
    size = PAPER_SIZES[architecture] if settings.model.size == PAPER["model.size"] else settings.model.size
    if size not in BASE_RATES:
        return own
    recipe = untouched(of_paper(architecture, size), settings)
    # 34B tokens from scratch (35B for RWKV-6) where no checkpoint of that size is published.
    steps = 35_000_000_000 // 524_288 if architecture == "rwkv6" else 34_000_000_000 // 524_288
    rows = recipe.get("trial.rows", settings.trial.rows)
    base = {"base.steps": steps, "base.rows": rows, "base.min_lr": PAPER["optimizer.min_lr"]}
    return recipe | untouched(base, settings) | own


SWEEP = NamedSweep(
    name="architectures",
    question="Do other recurrences fail in the same way, and does state passing repair them too?",
    why="The idea of unexplored states rests on nothing that only one recurrence has.",
    figure="Figs. 1 and 10",
    paper_found="Mamba-1, Mamba-2, GLA and RWKV-6 all fail past their training length; 500 steps of state passing "
    "(1000 for Mamba-1) make them hold.",
    contradicts="An architecture that fails and that state passing does not repair, while its zero-state control does.",
    varies="",
    facets=("model.architecture",),
    chooses=("architectures",),
    presets={
        "demo": {**DEMO, "sweep.architectures": tuple(CONTEXTS)},
        "paper": {
            **PAPER,
            "data.max_tokens": tokens_of_text(35_000_000_000),
            "trial.steps": 500,
            "trial.micro_rows": 8,
            "sweep.architectures": tuple(CONTEXTS),
        },
    },
    trials=trials,
)
