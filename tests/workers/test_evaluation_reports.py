"""What a trial reports when it evaluates on its way: a search decides by it whether the trial goes on."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from workers.context import TrialContext
from workers.settings import TrialConfig
from workers.trial import train

TrialMaker = Callable[..., TrialConfig]
ContextMaker = Callable[..., TrialContext]


def test_each_evaluation_is_reported_with_step_curve_and_the_whole_history(
    small_trial: TrialMaker, make_context: ContextMaker
) -> None:
    reports: list[dict[str, Any]] = []
    context = make_context(report=reports.append)
    train(small_trial("zero", eval={"every": 2, "apart_windows": 0, "diagnostic_windows": 0}), context)
    evaluated = [report for report in reports if "select" in report]
    assert [report["step"] for report in evaluated] == [2, 4]
    assert [[entry["step"] for entry in report["history"]] for report in evaluated] == [[1, 2], [1, 2, 3, 4]]
    history = json.loads((context.folder / "history.json").read_text())
    for report in evaluated:
        # 2 windows of 128 positions, the training length of 32 among the edges.
        edges, nll_sums, counts = (list(column) for column in zip(*report["select"], strict=True))
        assert edges[-1] == 128 and 32 in edges and sum(counts) == 2 * 128
        far = [(nll, count) for edge, nll, count in report["select"] if edge > 32]
        mean = sum(nll for nll, _ in far) / sum(count for _, count in far)
        assert history[report["step"] - 1]["select_far_nll"] == pytest.approx(mean)
    assert "done" not in {key for report in reports for key in report}, "Tune ends a trial that reports it"


def test_windows_within_the_training_length_have_no_far_value(
    small_trial: TrialMaker, make_context: ContextMaker
) -> None:
    context = make_context()
    train(small_trial("zero", steps=2, eval={"every": 2, "length": 32, "diagnostic_windows": 0}), context)
    history = json.loads((context.folder / "history.json").read_text())
    assert "select_far_nll" not in history[1] and "select_ppl_train" in history[1]
