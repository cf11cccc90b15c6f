"""Which settings may change between a checkpoint and the command that goes on from it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workers.context import TrialContext
from workers.settings import TrialConfig
from workers.trial import train

TrialMaker = Callable[..., TrialConfig]
ContextMaker = Callable[..., TrialContext]


class Stopped(Exception):
    """Ends a trial from outside."""


def stop_in_the_evaluation(metrics: dict[str, Any]) -> None:
    if metrics["phase"].startswith("evaluating"):
        raise Stopped


def history(folder: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads((folder / "history.json").read_text())
    return entries


def leave_checkpoint_of_step_two(config: TrialConfig, context: TrialContext) -> None:
    context.report = stop_in_the_evaluation
    with pytest.raises(Stopped):
        train(config, context)
    (context.folder / "checkpoints" / "step-00000004" / "manifest.json").unlink()


@pytest.mark.parametrize("changed", [{"micro_rows": 2}, {"threads": 2}], ids=["micro_rows", "threads"])
def test_micro_batches_and_threads_may_change(
    changed: dict[str, int], small_trial: TrialMaker, make_context: ContextMaker
) -> None:
    whole = make_context("whole")
    train(small_trial("state_passing"), whole)
    leave_checkpoint_of_step_two(small_trial("state_passing"), make_context("stopped"))
    resumed = make_context("stopped")
    train(small_trial("state_passing", trial=changed), resumed)

    expected, found = history(whole.folder), history(resumed.folder)
    assert [entry["loss"] for entry in found[:2]] == [entry["loss"] for entry in expected[:2]]
    for name in ("loss", "grad_norm", "state_rms"):
        assert [entry[name] for entry in found] == pytest.approx([entry[name] for entry in expected], rel=1e-4)
