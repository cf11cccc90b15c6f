"""How long a trial is expected to take on CPUs, from its token counts and a measured speed.

The speeds are those of the demo model on one thread while two trials run (benchmarks/demo_time.md); larger models are
scaled by their number of parameters. A guess for the plan and for the first ETA: as soon as a trial has finished, its
real duration is used.
"""

from models.registry import dims
from workers.arms import ARMS
from workers.settings import TrialConfig

TRAINING_TOKENS_PER_SECOND = 7_500.0
EVALUATION_TOKENS_PER_SECOND = 25_000.0
COST_PER_PARAMETER = {"mamba1": 1.6, "gla": 0.65, "rwkv6": 0.75}
"""As a multiple of Mamba-2's, which also stands for architectures not named here; from the demo sizes."""
PASSES = {"excess_nll": 3, "state_statistics": 1, "coverage": 1}
"""How often a diagnostic reads each token of its windows: whole and short history, the latter twice as long; once."""
SUFFIX_PASSES = 38
"""Of effective remembrance, over its T tokens: two texts, 37 suffixes of each, half as long on average."""
START_SECONDS = 8.0
"""Imports and the first DeepSpeed step of a process."""


def expected_seconds(config: TrialConfig, parameters: int) -> float:
    """Seconds for start, training and evaluation of one trial on its own threads."""
    cost = parameters * COST_PER_PARAMETER.get(config.model.architecture, 1.0)
    slower = cost / dims("mamba2", "demo").parameters() / (config.trial.workers * config.trial.threads)
    windows = config.eval.windows + config.eval.select_windows + config.eval.apart_windows
    read = windows * config.eval.length + _diagnostic_tokens(config)
    seconds = START_SECONDS + slower * read / EVALUATION_TOKENS_PER_SECOND
    if ARMS[config.arm].trains:
        trial = config.trial
        seconds += slower * trial.steps * config.batch_rows * config.window / TRAINING_TOKENS_PER_SECOND
        if config.eval.every:
            evaluations = trial.steps // config.eval.every
            tokens = evaluations * config.eval.select_windows * config.eval.length
            seconds += slower * tokens / EVALUATION_TOKENS_PER_SECOND
    return seconds


def _diagnostic_tokens(config: TrialConfig) -> int:
    """Tokens that the diagnostics read."""
    settings = config.eval
    length = min(settings.length, settings.diagnostic_length or settings.length)
    passes = sum(PASSES.get(name, 0) for name in settings.diagnostics)
    read = passes * length
    if "effective_remembrance" in settings.diagnostics:
        read += SUFFIX_PASSES * settings.remembrance_factor * config.trial.context
    return settings.diagnostic_windows * read
