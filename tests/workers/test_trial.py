"""Whole small trials: real text, a real DeepSpeed engine, an in-process bank."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from models.registry import ARCHITECTURES, build_model
from storage.bank.contract import StateBank
from storage.bank.in_process import InProcessBank
from storage.bank.layout import BankLayout
from storage.batch_order import StreamOrder
from storage.curve_files import read_curve
from storage.errors import StorageError
from storage.measurements import read_measurements
from storage.settings import BankSettings
from storage.token_cache import open_token_cache
from workers.arms import ARMS
from workers.context import TrialContext
from workers.engine import LossModule
from workers.evaluations.diagnostics import DIAGNOSTICS
from workers.settings import TrialConfig
from workers.training import NonFiniteStep
from workers.trial import train

TrialMaker = Callable[..., TrialConfig]
ContextMaker = Callable[..., TrialContext]


def losses(context: TrialContext) -> list[float]:
    return [entry["loss"] for entry in json.loads((context.folder / "history.json").read_text())]


def without_times(context: TrialContext) -> list[dict[str, Any]]:
    """The history without what depends on the clock."""
    history = json.loads((context.folder / "history.json").read_text())
    return [{k: v for k, v in entry.items() if k not in ("seconds", "tokens_per_second")} for entry in history]


@pytest.mark.parametrize("arm", ["base", "zero", "longer_context", "mixture"])
def test_every_arm_runs_to_its_curves(arm: str, small_trial: TrialMaker, make_context: ContextMaker) -> None:
    context = make_context()
    result = train(small_trial(arm, intervention={"sigma": 0.1}), context)
    assert set(result["curves"]) == {"select", "report", "apart"}
    assert (result["kernel"], result["kernel_packages"]) == ("chunked", {})
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


def arms_and_architectures() -> list[Any]:
    """Every arm with every architecture; those by default that differ by more than the shape of a state."""
    everywhere = ("state_passing", "fitted_noise", "tbtt")
    pairs = [(arm.name, name) for arm in ARMS.values() if arm.trains for name in ARCHITECTURES]
    return [
        pytest.param(
            arm, name, marks=() if name == "mamba2" or arm in everywhere else pytest.mark.slow, id=f"{arm}-{name}"
        )
        for arm, name in pairs
    ]


@pytest.mark.parametrize(("arm", "architecture"), arms_and_architectures())
def test_a_stopped_trial_resumes_bit_for_bit(
    arm: str, architecture: str, small_trial: TrialMaker, make_context: ContextMaker
) -> None:
    config = small_trial(
        arm,
        steps=20,
        rows=4,
        model={"architecture": architecture, "size": "tiny"},
        intervention={"sigma": 0.1},
        trial={"checkpoint_every": 10},
        eval={"diagnostics": tuple(DIAGNOSTICS) if architecture == "mamba2" else ()},
    )
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
    # The last checkpoint is that of step 20; without it the trial goes on from step 10.
    newest = stopped.folder / "checkpoints" / "step-00000020"
    assert newest.is_dir()
    (newest / "loop.json").write_text("damaged")
    resumed = make_context("stopped")
    train(config, resumed)
    assert without_times(resumed) == without_times(whole)
    records = [json.loads((context.folder / "result.json").read_text()) for context in (whole, resumed)]
    assert records[0]["intervention"] == records[1]["intervention"]
    assert (records[0]["bank"] or {}).get("digest") == (records[1]["bank"] or {}).get("digest")
    one, other = (read_curve(context.folder / "report.parquet") for context in (whole, resumed))
    assert one.equals(other)
    for name, file in records[0]["diagnostics"].items():
        assert read_measurements(whole.folder / file).equals(read_measurements(resumed.folder / file)), name
    assert not (resumed.folder / "checkpoints").exists(), "a finished trial needs no checkpoints"


def test_a_checkpoint_of_another_zero_stage_is_refused(small_trial: TrialMaker, make_context: ContextMaker) -> None:
    def stop(metrics: dict[str, Any]) -> None:
        if metrics["phase"].startswith("evaluating"):
            raise StopAt

    with pytest.raises(StopAt):
        train(small_trial("zero", trial={"zero_stage": 0}), make_context(report=stop))
    with pytest.raises(StorageError, match="trial.zero_stage=0, and only that can go on from it"):
        train(small_trial("zero", trial={"zero_stage": 3}), make_context())


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


def test_a_step_that_is_not_finite_is_skipped_counted_and_its_state_zeroed(
    small_trial: TrialMaker, make_context: ContextMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    deposited = {}

    class Watched(InProcessBank):
        def withdraw(self, step: int, rows: Any, out: Any = None) -> Any:
            found = super().withdraw(step, rows, out)
            deposited[step] = found.copy()
            return found

    forward = LossModule.forward
    calls: list[None] = []

    def overflow_in_step_two(self: LossModule, tokens: Any, targets: Any, state: Any) -> Any:
        nll_sum, final_state = forward(self, tokens, targets, state)
        calls.append(None)
        if len(calls) == 2:
            final_state[0]["recurrent"] = final_state[0]["recurrent"].clone()
            final_state[0]["recurrent"][3, 0, 0, 0] = torch.inf
        return nll_sum, final_state

    monkeypatch.setattr(LossModule, "forward", overflow_in_step_two)
    context = make_context(open_bank=lambda layout: Watched(layout))
    train(small_trial("state_passing", intervention={"reset_probability": 0.0}), context)
    history = json.loads((context.folder / "history.json").read_text())
    assert [entry["skipped"] for entry in history] == [0, 1, 0, 0]
    assert [entry["zeroed_rows"] for entry in history] == [0, 1, 0, 0]
    assert all(0 < entry["state_rms"] < 1 for entry in history)
    # Row 3 of the third step starts from zero, the others from what they left.
    assert (deposited[2][3] == 0).all() and (deposited[2][[0, 1, 2, 4, 5]] != 0).any(axis=1).all()


def test_too_many_skipped_steps_in_a_row_end_the_trial_with_the_reason(
    small_trial: TrialMaker, make_context: ContextMaker
) -> None:
    config = small_trial("random_noise", intervention={"sigma": 1e38}, trial={"max_skipped": 2})
    with pytest.raises(NonFiniteStep, match="3 steps in a row, up to step 3, were not finite and were skipped; at the"):
        train(config, make_context())


@pytest.mark.parametrize("arm", ["state_passing", "tbtt", "shuffled_entries"])
def test_resident_rows_train_like_rows_in_the_bank(
    arm: str, small_trial: TrialMaker, make_context: ContextMaker
) -> None:
    found = []
    for mode in ("everything", "resident"):
        context = make_context(mode)
        config = small_trial(arm, intervention={"passing": "permuted"} if arm != "tbtt" else {})
        result = train(replace(config, bank=BankSettings(mode=mode)), context)
        assert result["bank"]["mode"] == mode
        found.append((without_times(context), result["bank"]["digest"]))
    assert found[0] == found[1]


def test_tbtt_without_learning_reads_on_like_one_long_pass(small_trial: TrialMaker, make_context: ContextMaker) -> None:
    steps, rows, window = 5, 3, 32
    config = small_trial(
        "tbtt",
        steps=steps,
        rows=rows,
        intervention={"reset_probability": 0.0},
        optimizer={"peak_lr": 0.0, "min_lr": 0.0},
    )
    context = make_context()
    train(config, context)
    cache = open_token_cache(config.data, context.cache)
    order = StreamOrder(cache, context=window, rows=rows, seed=0)
    windows = [order.windows(step, range(rows)) for step in range(steps)]
    assert not any(order.document_starts(step, range(rows)).any() for step in range(1, steps))
    tokens = torch.from_numpy(np.concatenate([each[:, :-1] for each in windows] + [windows[-1][:, -1:]], axis=1))
    model = build_model(config.model, 256, seed=0)
    hidden, _ = model(tokens[:, :-1])
    nll = torch.nn.functional.cross_entropy(
        model.head(hidden).flatten(0, 1).double(), tokens[:, 1:].flatten(), reduction="none"
    )
    expected = nll.view(rows, steps, window).mean(dim=(0, 2)).tolist()
    assert losses(context) == pytest.approx(expected, rel=1e-5)


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
def test_every_zero_stage_trains_alike_also_in_micro_batches(
    stage: int, small_trial: TrialMaker, make_context: ContextMaker
) -> None:
    found = []
    for name, zero_stage, micro_rows in (("plain", 0, 6), ("staged", stage, 6), ("parts", stage, 2)):
        context = make_context(f"{name}-{stage}")
        trial = {"zero_stage": zero_stage, "micro_rows": micro_rows}
        train(small_trial("state_passing", steps=2, trial=trial), context)
        found.append(losses(context))
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert found[0] == pytest.approx(found[2], rel=1e-4)


@pytest.mark.parametrize("stage", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_recomputed_layers_train_alike_bit_for_bit(
    stage: int, small_trial: TrialMaker, make_context: ContextMaker
) -> None:
    found = []
    for recompute in (False, True):
        context = make_context(f"recompute-{recompute}")
        trial = {"zero_stage": stage, "micro_rows": 3, "activation_checkpointing": recompute}
        train(small_trial("state_passing", steps=3, trial=trial), context)
        found.append(without_times(context))
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "architecture"), [(0, "mamba2"), (1, "mamba1"), (2, "mamba2"), (3, "mamba1"), (3, "gla")]
)
def test_a_stopped_trial_in_bf16_resumes_bit_for_bit(
    stage: int, architecture: str, small_trial: TrialMaker, make_context: ContextMaker
) -> None:
    trial = {"precision": "bf16", "zero_stage": stage, "micro_rows": 3 if stage else 6}
    config = small_trial("state_passing", model={"architecture": architecture, "size": "tiny"}, trial=trial)
    whole = make_context("whole")
    train(config, whole)

    def stop(metrics: dict[str, Any]) -> None:
        if metrics["phase"].startswith("evaluating"):
            raise StopAt

    with pytest.raises(StopAt):
        train(config, make_context("stopped", report=stop))
    resumed = make_context("stopped")
    (resumed.folder / "checkpoints" / "step-00000004" / "loop.json").write_text("damaged")
    train(config, resumed)
    assert without_times(resumed) == without_times(whole)
    models = [load_file(context.folder / "model" / "model.safetensors") for context in (whole, resumed)]
    assert all(torch.equal(value, models[1][name]) for name, value in models[0].items())
    decays = {value.dtype for name, value in models[0].items() if name.endswith("A_log")}
    assert decays == ({torch.float32} if architecture.startswith("mamba") else set())
