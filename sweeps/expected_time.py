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
START_SECONDS = 8.0
"""Imports and the first DeepSpeed step of a process."""


def expected_seconds(config: TrialConfig, parameters: int) -> float:
    """Seconds for start, training and evaluation of one trial on its own threads."""
    cost = parameters * COST_PER_PARAMETER.get(config.model.architecture, 1.0)
    slower = cost / dims("mamba2", "demo").parameters() / (config.trial.workers * config.trial.threads)
    windows = config.eval.windows + config.eval.select_windows + config.eval.apart_windows
    seconds = START_SECONDS + slower * windows * config.eval.length / EVALUATION_TOKENS_PER_SECOND
    if ARMS[config.arm].trains:
        trial = config.trial
        seconds += slower * trial.steps * config.batch_rows * config.window / TRAINING_TOKENS_PER_SECOND
        if config.eval.every:
            evaluations = trial.steps // config.eval.every
            tokens = evaluations * config.eval.select_windows * config.eval.length
            seconds += slower * tokens / EVALUATION_TOKENS_PER_SECOND
    return seconds
