"""How long trials would keep GPUs busy, from their token counts and a stated speed: for plans, never measured here.

A training token costs 6 floating-point operations per parameter, an evaluation token 2 (J. Kaplan et al., "Scaling Laws
for Neural Language Models", arXiv:2001.08361, section 2.1). The speed is that of an A100 (312 TFLOP/s in bf16) of which
30 % come through: an assumption of ours, which a measured speed of your own cluster should replace.
"""

from collections.abc import Sequence

from workers.arms import ARMS
from workers.settings import TrialConfig
from workers.shapes import model_dims

GPU = "A100"
FLOPS_PER_SECOND = 0.3 * 312e12
MOST_TOKENS_PER_SECOND = 500_000.0
"""Small models do not fill a GPU; ours too."""
FLOPS_PER_TRAINED, FLOPS_PER_EVALUATED = 6, 2


def training_tokens(config: TrialConfig) -> int:
    """Tokens that the trial's steps read."""
    return config.trial.steps * config.batch_rows * config.window if ARMS[config.arm].trains else 0


def evaluation_tokens(config: TrialConfig) -> int:
    """Tokens that the curves of the trial read, at its end and between its steps."""
    evaluation = config.eval
    tokens = (evaluation.windows + evaluation.select_windows + evaluation.apart_windows) * evaluation.length
    if evaluation.every and ARMS[config.arm].trains:
        tokens += config.trial.steps // evaluation.every * evaluation.select_windows * evaluation.length
    return tokens


def tokens_per_second(config: TrialConfig) -> float:
    """Training tokens a second of one GPU that are assumed for this model."""
    return min(MOST_TOKENS_PER_SECOND, FLOPS_PER_SECOND / (FLOPS_PER_TRAINED * model_dims(config).parameters()))


def gpu_hours(config: TrialConfig) -> float:
    """GPU-hours of the trial, over all its workers together."""
    share = FLOPS_PER_EVALUATED / FLOPS_PER_TRAINED
    seconds = (training_tokens(config) + share * evaluation_tokens(config)) / tokens_per_second(config)
    return seconds / 3600


def gpu_line(configs: Sequence[TrialConfig]) -> str:
    """The total, and the speeds it rests on."""
    speeds = {}
    for config in configs:
        speeds[f"{config.model.architecture} {config.model.size}"] = tokens_per_second(config)
    stated = ", ".join(f"{speed:,.0f} for {model}" for model, speed in speeds.items())
    hours = sum(map(gpu_hours, configs))
    return f"on GPUs: {hours:.2g} GPU-hours in all, assuming so many training tokens a second of one {GPU}: {stated}"
