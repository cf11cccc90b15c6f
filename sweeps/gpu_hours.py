"""How long trials would keep GPUs busy, and what that costs, from token counts and an assumed speed; nothing measured.

A training token costs 6 floating-point operations per parameter, 8 where activation checkpointing repeats the forward
pass, an evaluation token 2 (J. Kaplan et al., "Scaling Laws for Neural Language Models", arXiv:2001.08361, section
2.1). Speed and price are those of the settings `gpu.*`.
"""

from collections.abc import Sequence

from sweeps.gpu_settings import GpuSettings
from workers.arms import ARMS
from workers.settings import TrialConfig
from workers.shapes import model_dims

MOST_TOKENS_PER_SECOND = 500_000.0
"""Small models do not fill a GPU; ours too."""
FLOPS_PER_TRAINED, FLOPS_PER_REPEATED, FLOPS_PER_EVALUATED = 6, 8, 2


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


def tokens_per_second(config: TrialConfig, gpu: GpuSettings) -> float:
    """Training tokens a second of one GPU that are assumed for this model."""
    flops = FLOPS_PER_REPEATED if config.trial.activation_checkpointing else FLOPS_PER_TRAINED
    return min(MOST_TOKENS_PER_SECOND, gpu.flops_per_second / (flops * model_dims(config).parameters()))


def gpu_hours(config: TrialConfig, gpu: GpuSettings) -> float:
    """GPU-hours of the trial, over all its workers together."""
    flops = FLOPS_PER_REPEATED if config.trial.activation_checkpointing else FLOPS_PER_TRAINED
    share = FLOPS_PER_EVALUATED / flops
    seconds = (training_tokens(config) + share * evaluation_tokens(config)) / tokens_per_second(config, gpu)
    return seconds / 3600


def gpu_line(configs: Sequence[TrialConfig], gpu: GpuSettings) -> str:
    """The total with its cost, and the speeds it rests on."""
    hours = sum(gpu_hours(config, gpu) for config in configs)
    return f"on GPUs: {hours:.3g} GPU-hours in all {price(hours, gpu)}, {speeds(configs, gpu)}"


def price(hours: float, gpu: GpuSettings) -> str:
    """What so many GPU-hours cost, in brackets."""
    return f"({hours * gpu.usd_per_hour:.3g} USD at {gpu.usd_per_hour:g} USD an hour)"


def speeds(configs: Sequence[TrialConfig], gpu: GpuSettings) -> str:
    """The speeds that are assumed, by model."""
    found = {f"{one.model.architecture} {one.model.size}": tokens_per_second(one, gpu) for one in configs}
    stated = ", ".join(f"{speed:,.0f} for {model}" for model, speed in found.items())
    return f"assuming so many training tokens a second of one {gpu.name}: {stated}"


def gpu_json(config: TrialConfig, gpu: GpuSettings) -> dict[str, float]:
    """Speed, time and price of one trial, for the plan's JSON."""
    hours = gpu_hours(config, gpu)
    return {
        "tokens_per_second": round(tokens_per_second(config, gpu), 1),
        "gpu_hours": round(hours, 4),
        "usd": round(hours * gpu.usd_per_hour, 4),
    }
