"""Whole small trials: real text, a real DeepSpeed engine, an in-process bank."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.bank.contract import StateBank
from storage.bank.in_process import InProcessBank
from storage.bank.layout import BankLayout
from storage.curve_files import read_curve
from workers.context import TrialContext
from workers.settings import TrialConfig
from workers.training import NonFiniteStep
from workers.trial import train

TrialMaker = Callable[..., TrialConfig]
ContextMaker = Callable[..., TrialContext]


def losses(context: TrialContext) -> list[float]:
    return [entry["loss"] for entry in json.loads((context.folder / "history.json").read_text())]


@pytest.mark.parametrize("arm", ["base", "zero", "random_noise", "state_passing"])
def test_every_arm_runs_to_its_curves(arm: str, small_trial: TrialMaker, make_context: ContextMaker) -> None:
    context = make_context()
    result = train(small_trial(arm, intervention={"sigma": 0.1}), context)
    assert set(result["curves"]) == {"select", "report", "apart"}
    curve = read_curve(context.folder / "report.parquet")
    assert curve.nll_sum.shape[0] == 2 and curve.count.sum() == 2 * 128
    # A model that has learnt next to nothing is near the uniform distribution over 256 bytes.
    assert 5 < curve.range_perplexity(16, 32) < 400
    assert len(losses(context)) == (0 if arm == "base" else 4)
    assert (context.folder / "model" / "model.safetensors").is_file() == (arm != "base")


def test_zero_and_state_passing_agree_until_a_state_is_passed(
    small_trial: TrialMaker, make_context: ContextMaker
) -> None:
    curves = {}
    for arm in ("zero", "state_passing"):
        context = make_context(arm)
        train(small_trial(arm, intervention={"reset_probability": 0.0}), context)
        curves[arm] = losses(context)
    assert curves["zero"][0] == curves["state_passing"][0]
    assert curves["zero"][1] != curves["state_passing"][1]


def test_sigma_zero_is_the_control(small_trial: TrialMaker, make_context: ContextMaker) -> None:
    found = []
    for arm in ("zero", "random_noise"):
        context = make_context(arm)
        train(small_trial(arm), context)
        found.append(losses(context))
    assert found[0] == pytest.approx(found[1], rel=1e-6)


class StopAt(Exception):
    """Ends a trial from outside after a step."""


@pytest.mark.parametrize("arm", ["zero", "random_noise", "state_passing"])
def test_a_stopped_trial_resumes_bit_for_bit(arm: str, small_trial: TrialMaker, make_context: ContextMaker) -> None:
    config = small_trial(arm, steps=6, intervention={"sigma": 0.1})
    whole = make_context("whole")
    train(config, whole)

    stopped = make_context("stopped")
    seen: list[dict[str, Any]] = []

    def stop_in_the_evaluation(metrics: dict[str, Any]) -> None:
        seen.append(metrics)
        if metrics["phase"].startswith("evaluating"):
            raise StopAt

    stopped.report = stop_in_the_evaluation
    with pytest.raises(StopAt):
        train(config, stopped)
    # The last checkpoint is that of step 6; without it the trial goes on from step 4.
    newest = stopped.folder / "checkpoints" / "step-00000006"
    assert newest.is_dir()
    (newest / "loop.json").write_text("damaged")
    resumed = make_context("stopped")
    train(config, resumed)
    assert losses(resumed) == losses(whole)
    one, other = (read_curve(context.folder / "report.parquet") for context in (whole, resumed))
    assert one.equals(other)
    assert not (resumed.folder / "checkpoints").exists(), "a finished trial needs no checkpoints"


def test_a_checkpoint_of_another_zero_stage_is_not_continued(
    small_trial: TrialMaker, make_context: ContextMaker, caplog: pytest.LogCaptureFixture
) -> None:
    def stop(metrics: dict[str, Any]) -> None:
        if metrics["phase"].startswith("evaluating"):
            raise StopAt

    context = make_context(report=stop)
    with pytest.raises(StopAt):
        train(small_trial("zero", trial={"zero_stage": 0}), context)
    train(small_trial("zero", trial={"zero_stage": 3}), make_context())
    assert "ZeRO stage 0" in caplog.text and "is refused" in caplog.text
    assert len(losses(context)) == 4


def test_micro_batches_give_the_same_losses(small_trial: TrialMaker, make_context: ContextMaker) -> None:
    found = []
    for micro_rows in (6, 2):
        context = make_context(f"micro-{micro_rows}")
        train(small_trial("state_passing", trial={"micro_rows": micro_rows}), context)
        found.append(losses(context))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_a_corrupted_row_in_the_bank_changes_the_next_loss(small_trial: TrialMaker, make_context: ContextMaker) -> None:
    class Corrupting(InProcessBank):
        """Deposits row 3 of step 1 with another state."""

        def deposit(self, step: int, rows: Any, states: Any) -> Any:
            states = states.copy()
            if step == 1:
                states[np.asarray(rows) == 3] += 1.0
            return super().deposit(step, rows, states)

    def open_corrupting(layout: BankLayout) -> StateBank:
        return Corrupting(layout)

    config = small_trial("state_passing", intervention={"reset_probability": 0.0})
    clean, corrupted = make_context("clean"), make_context("corrupted", open_bank=open_corrupting)
    train(config, clean)
    train(config, corrupted)
    assert losses(clean)[:2] == losses(corrupted)[:2]
    assert losses(clean)[2] != losses(corrupted)[2]


def test_every_step_of_state_passing_goes_through_the_bank(small_trial: TrialMaker, make_context: ContextMaker) -> None:
    counters = {}

    class Counted(InProcessBank):
        def close(self) -> None:
            counters.update(self.counters())
            super().close()

    config = small_trial("state_passing", steps=4, rows=6)
    train(config, make_context(open_bank=lambda layout: Counted(layout)))
    elements = 2 * 16 * 16 * 64
    assert counters["deposits"] == 4 * 6 and counters["bytes"] == 4 * 6 * elements * 4


def test_bf16_trains_and_evaluates(small_trial: TrialMaker, make_context: ContextMaker) -> None:
    context = make_context()
    train(small_trial("state_passing", trial={"precision": "bf16"}), context)
    assert losses(context)[-1] < losses(context)[0]
    assert np.isfinite(read_curve(context.folder / "report.parquet").nll_sum).all()


def test_a_loss_that_is_no_number_ends_the_trial_with_its_step(
    small_trial: TrialMaker, make_context: ContextMaker
) -> None:
    config = small_trial("random_noise", intervention={"sigma": 1e38})
    with pytest.raises(NonFiniteStep, match="at step 1"):
        train(config, make_context())


def test_evaluation_does_not_depend_on_the_chunk(small_trial: TrialMaker, make_context: ContextMaker) -> None:
    curves = []
    for chunk in (128, 50, 1):
        context = make_context(f"chunk-{chunk}")
        train(small_trial("base", eval={"chunk": chunk, "windows": 1, "select_windows": 1}), context)
        curves.append(read_curve(context.folder / "report.parquet"))
    for curve in curves[1:]:
        assert np.allclose(curve.nll_sum, curves[0].nll_sum, rtol=1e-5)
        assert np.array_equal(curve.count, curves[0].count)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_every_zero_stage_trains_alike(
    stage: int, small_trial: TrialMaker, make_context: ContextMaker, tmp_path: Path
) -> None:
    found = []
    for name, zero_stage in (("plain", 0), ("staged", stage)):
        context = make_context(f"{name}-{stage}")
        train(small_trial("state_passing", steps=2, trial={"zero_stage": zero_stage}), context)
        found.append(losses(context))
    assert found[0] == pytest.approx(found[1], rel=1e-5)
