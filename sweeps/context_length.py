"""context_length: the training window at a fixed number of tokens, when training from scratch or after it."""

import itertools
from typing import Any

from sweeps.demo_preset import DEMO, FROM_SCRATCH
from sweeps.paper_preset import BASE_RATES, PAPER, tokens_of_text
from sweeps.registry import NamedSweep
from sweeps.settings import SettingError, Settings
from sweeps.trials import Trial, beside_base, from_scratch, swept
from workers.settings import FRESH_BASE

NAME = "trial.context"


def trials(settings: Settings, seeds: list[int]) -> list[Trial]:
    """Every context, once for each seed: from scratch, or in the control and state passing after a base."""
    windows = [_window(settings, int(context)) for context in swept(settings, NAME)]
    if settings.sweep.stage == "pretrain":
        return [from_scratch(settings, seed, window) for seed in seeds for window in windows]
    return beside_base(settings, seeds, itertools.product(("zero", "state_passing"), windows))


def _window(settings: Settings, context: int) -> dict[str, Any]:
    """The context, and so many rows that a step has as many tokens as `trial.rows` windows of `trial.context`."""
    tokens = settings.trial.rows * settings.trial.context
    if context < 1 or tokens % context:
        raise SettingError(
            f"sweep.values holds {context}, but a step of {tokens} tokens (trial.rows x trial.context) is no whole "
            "number of such windows; write divisors of it"
        )
    rows = tokens // context
    micro = max(1, min(rows, settings.trial.micro_rows * settings.trial.context // context))
    return {NAME: context, "trial.rows": rows, "trial.micro_rows": micro if settings.trial.micro_rows else 0}


SWEEP = NamedSweep(
    name="context_length",
    question="How does length generalisation depend on the training window, at as many tokens?",
    why="Longer windows reach more states, at the price of fewer texts a step: the natural rival of all interventions.",
    figure="Fig. 2",
    paper_found="A Mamba-2 of 125M trained on 25B tokens fails clearly past a window of 1024, later past 2048, and "
    "is more stable with 4096.",
    contradicts="Short windows that hold as far as long ones.",
    varies=NAME,
    seeds_of="base.seed and trial.seed from scratch, trial.seed after a base",
    presets={"demo": {}, "paper": PAPER},
    stages={
        "demo": {
            "pretrain": {**FROM_SCRATCH, "sweep.values": (32.0, 64.0, 128.0, 256.0)},
            "posttrain": {**DEMO, "sweep.values": (64.0, 128.0, 256.0, 512.0)},
        },
        "paper": {
            # 25B tokens in steps of 0.5M.
            "pretrain": {
                "model.size": "125m",
                "base.checkpoint": FRESH_BASE,
                "trial.steps": 47_684,
                "data.max_tokens": tokens_of_text(25_000_000_000),
                "trial.checkpoint_every": 500,
                "optimizer.peak_lr": BASE_RATES["125m"],
                "sweep.values": (512.0, 1024.0, 2048.0, 4096.0),
            },
            "posttrain": {"sweep.values": (2048.0, 4096.0, 8192.0, 16384.0)},
        },
    },
    trials=trials,
)
