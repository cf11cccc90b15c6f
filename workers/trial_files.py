"""Names of the files in a trial's folder, and what a checkpoint in it depends on."""

RESULT = "result.json"
"""Written last: a trial with this file is finished and never runs again."""
HISTORY = "history.json"
"""One entry per step."""
MODEL = "model"
"""Folder of the trained model."""

FAILURE = "failure.txt"
"""Why the last attempt failed; the next attempt removes it."""
PROCESS = "process.json"
"""Which process runs the trial, or ran it last."""
CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints; it goes when the trial has finished."""


def kept_model(step: int) -> str:
    """Folder of the model after `step` steps; 0 stands for the last."""
    return f"{MODEL}-{step}" if step else MODEL


def checkpoint_layout(workers: int, zero_stage: int) -> dict[str, int]:
    """The settings by which DeepSpeed lays out a checkpoint; no identity holds them."""
    return {"trial.workers": workers, "trial.zero_stage": zero_stage}
