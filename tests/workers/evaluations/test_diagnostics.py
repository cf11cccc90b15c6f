import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from storage.measurements import read_measurements
from storage.tracking_view import view_state
from tests.workers.evaluations.byte_models import byte_model, report_windows
from workers.evaluations.diagnostics import DIAGNOSTICS, as_measured, run_diagnostics
from workers.settings import EvalSettings, trial_identity
from workers.trial import train

SHORT = {"trial": {"context": 16}, "eval": {"diagnostics": tuple(DIAGNOSTICS)}}


@pytest.mark.parametrize("arm", ["base", "state_passing"])
def test_a_trial_keeps_every_diagnostic_beside_its_curves(arm: str, small_trial: Any, make_context: Any) -> None:
    phases: list[str] = []
    context = make_context(report=lambda metrics: phases.append(metrics["phase"]))
    result = train(small_trial(arm, **SHORT), context)
    assert result["diagnostics_left_out"] == {}
    assert set(DIAGNOSTICS) <= set(result["diagnostics"])
    for name, file in result["diagnostics"].items():
        table = read_measurements(context.folder / file)
        assert table.name == name and len(table.position) > 0 and file == f"{name}.parquet"
        assert all(np.isfinite(value) for value in table.summary.values())
    assert [phase for phase in phases if phase.startswith("diagnosing")] == [
        f"diagnosing {name}" for name in DIAGNOSTICS
    ]
    kept = json.loads((context.folder / "result.json").read_text())
    assert kept["diagnostics"] == result["diagnostics"] and kept["seconds"]["diagnostics"] > 0


def test_windows_too_short_are_said_and_fail_nothing(small_trial: Any, make_context: Any) -> None:
    config = small_trial("base", trial={"context": 64}, eval={"diagnostics": ("excess_nll", "state_statistics")})
    result = train(config, make_context())
    assert "state_statistics" in result["diagnostics"] and "excess_nll" not in result["diagnostics"]
    assert result["diagnostics_left_out"] == {"excess_nll": "128 positions do not reach beyond twice trial.context=64"}


def test_only_the_chosen_ones_run_on_the_first_windows(small_trial: Any, make_context: Any, token_caches: Path) -> None:
    windows, context, model = report_windows(token_caches, 128, 3), make_context(), byte_model("gla", torch.float32)
    settings = {"diagnostics": ("excess_nll",), "windows": 3, "diagnostic_windows": 1}
    tables, left_out = run_diagnostics(model, windows, small_trial("base", eval=settings), context)
    assert tables[0].position[-1] == 128
    assert [table.name for table in tables] == ["excess_nll", "excess_nll_by_window"] and left_out == {}
    assert set(tables[1].columns["document"]) == {windows[0].document_id}
    shorter = small_trial("base", trial={"context": 16}, eval={**settings, "diagnostic_length": 64})
    (table, _), _ = run_diagnostics(model, windows, shorter, context)
    assert table.position.tolist() == [38, 45, 54, 64]
    none = small_trial("base", eval={**settings, "diagnostic_windows": 0})
    assert run_diagnostics(model, windows, none, context) == ([], {"excess_nll": "eval.diagnostic_windows is 0"})
    assert run_diagnostics(model, windows, small_trial("base"), context) == ([], {})


@pytest.mark.parametrize("architecture", ["mamba2", "rwkv6"])
def test_a_bf16_model_is_measured_in_fp32_and_put_back(
    architecture: str, small_trial: Any, make_context: Any, token_caches: Path
) -> None:
    config = small_trial("base", trial={"context": 16}, eval={"diagnostics": ("excess_nll", "effective_remembrance")})
    windows, half = report_windows(token_caches, 128, 2), byte_model(architecture, torch.bfloat16).train()
    before = {name: value.clone() for name, value in half.state_dict().items()}
    full = byte_model(architecture, torch.bfloat16).float()
    of_half, _ = run_diagnostics(half, windows, config, make_context())
    of_full, _ = run_diagnostics(full, windows, config, make_context())
    assert all(one.equals(other) for one, other in zip(of_half, of_full, strict=True))
    assert half.training and not full.eval().training
    assert all(value.dtype == torch.bfloat16 for value in half.state_dict().values())
    assert all(torch.equal(value, before[name]) for name, value in half.state_dict().items())


def test_what_a_bf16_model_keeps_in_fp32_is_put_back_unrounded() -> None:
    model = byte_model("mamba2", torch.float32)
    before = {name: model.get_parameter(name).detach().clone() for name in model.fp32_parameters()}
    with as_measured(model.in_precision(torch.bfloat16)):
        assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    assert model.head_weight().dtype == torch.bfloat16
    assert before and all(torch.equal(model.get_parameter(name), value) for name, value in before.items())


def test_the_model_is_put_back_after_a_failure_too() -> None:
    model = byte_model("mamba2", torch.bfloat16).train()
    with pytest.raises(RuntimeError), as_measured(model):
        assert model.head_weight().dtype == torch.float32 and not model.training and not torch.is_grad_enabled()
        raise RuntimeError
    assert model.head_weight().dtype == torch.bfloat16 and model.training and torch.is_grad_enabled()
    with as_measured(exact := byte_model("mamba2")):
        assert exact.head_weight().dtype == torch.float64


@pytest.mark.parametrize("name", DIAGNOSTICS)
def test_every_diagnostic_is_folded_below_the_curves_in_the_tracking_view(name: str) -> None:
    sections = json.loads(view_state("ppl_by_position", "sweep"))["compareRunSections"]
    assert [section["display"] for section in sections if section["uuid"] == name] == [False]


def test_unknown_and_doubled_names_are_refused() -> None:
    with pytest.raises(
        ValueError, match="eval.diagnostics names 'excess'; did you mean 'excess_nll'. There are excess_"
    ):
        EvalSettings(diagnostics=("excess",))
    with pytest.raises(ValueError, match="coverage', 'coverage'.; write some of excess_nll, .*, each once"):
        EvalSettings(diagnostics=("coverage", "coverage"))
    with pytest.raises(ValueError, match="eval.diagnostic_windows is -1; write a whole number of at least 0"):
        EvalSettings(diagnostic_windows=-1)
    with pytest.raises(ValueError, match="eval.remembrance_factor is 0; write a whole number of at least 1"):
        EvalSettings(remembrance_factor=0)


def test_what_is_diagnosed_belongs_to_the_identity(small_trial: Any) -> None:
    changed = [{}, {"diagnostics": ("coverage",)}, {"diagnostic_windows": 1}, {"diagnostic_length": 64}]
    identities = {trial_identity(small_trial("base", eval=values), "base", "data") for values in changed}
    assert len(identities) == 4


def test_the_names_are_known_without_torch() -> None:
    code = "import sys, workers.evaluations.diagnostics; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
