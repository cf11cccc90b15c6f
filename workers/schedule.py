"""The learning rate as a pure function of the step, so that a resumed trial needs no scheduler state."""

import math

from workers.settings import OptimizerSettings


def learning_rate(step: int, steps: int, settings: OptimizerSettings) -> float:
    """Learning rate of step 0..steps-1: linear warm-up over `warmup_share`, then by `schedule` (see the settings).

    Step 0 already moves (rate peak / warm-up steps); the last step of `cosine` and of `wsd` runs at `min_lr`, so that
    the schedule is finished.
    """
    warmup = round(settings.warmup_share * steps)
    if step < warmup:
        return settings.peak_lr * (step + 1) / warmup
    if settings.schedule == "constant":
        return settings.peak_lr
    if settings.schedule == "wsd":
        decay = round(settings.decay_share * steps)
        done = max(0, step + 1 - (steps - decay)) / max(1, decay)
        return settings.peak_lr + (settings.min_lr - settings.peak_lr) * done
    share = (step - warmup) / max(1, steps - 1 - warmup)
    return settings.min_lr + (settings.peak_lr - settings.min_lr) * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))
