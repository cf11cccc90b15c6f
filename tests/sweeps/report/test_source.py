import json
from pathlib import Path

import pytest

from sweeps.folder_files import NOT_FINISHED
from sweeps.report.source import ReportError, read_plan, read_sweep
from tests.sweeps.report.makers import Made, make_folder


def test_a_finished_trial_comes_with_its_name_curves_and_diagnostics(tmp_path: Path) -> None:
    made = Made("demo random_noise 0.1", seed=3, value=0.1, group="demo", diagnosed=True)
    (found,) = read_sweep(make_folder(tmp_path / "sweep", [made])).results
    assert (found.group, found.label, found.short) == ("demo", "demo random_noise 0.1", "random_noise 0.1")
    assert (found.arm, found.seed, found.value, found.seconds) == ("random_noise", 3, 0.1, 30.0)
    assert found.report.equals(made.curve()) and found.select is not None and found.select.equals(made.curve("select"))
    assert found.measurements["coverage"].columns["distance"].tolist() == pytest.approx(
        [0.1 + 0.1 * octave + 0.03 for octave in range(9)]
    )


def test_what_did_not_finish_is_listed_with_its_reason(tmp_path: Path) -> None:
    trials = [
        Made("base"),
        Made("zero", finished=False, failure="out of memory\nTraceback ..."),
        Made("state_passing", finished=False),
        Made("tbtt", finished=False, failure="an older reason"),
    ]
    sweep = read_sweep(make_folder(tmp_path / "sweep", trials), reasons={trials[3].identity: "killed"})
    assert [result.label for result in sweep.results] == ["base"]
    assert [(one.label, one.reason) for one in sweep.failed] == [
        ("zero", "out of memory"),
        ("state_passing", NOT_FINISHED),
        ("tbtt", "killed"),
    ]


def test_a_damaged_curve_makes_its_trial_one_that_did_not_finish(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "sweep", [Made("base"), Made("zero")])
    (root / "trials" / f"trial-{Made('zero').identity[:8]}" / "report.parquet").write_bytes(b"PAR1")
    sweep = read_sweep(root)
    assert [result.label for result in sweep.results] == ["base"]
    (failed,) = sweep.failed
    assert failed.label == "zero" and "damaged" in failed.reason and "runs it again" in failed.reason


@pytest.mark.parametrize("content", [None, "", "[]", '{"sweep": "x"}', '{"sweep": "x", "trials": [{}]}'])
def test_a_folder_that_is_none_of_a_sweep_is_one_sentence(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "sweep.json").write_text(content)
    with pytest.raises(ReportError, match="is no folder of a sweep: it has no sweep.json that this version can read"):
        read_sweep(tmp_path)


@pytest.mark.parametrize("lost", ["question", "preset", "name", "config"])
def test_a_plan_of_another_version_is_refused_in_one_sentence(tmp_path: Path, lost: str) -> None:
    trial = {"name": {}, "identity": "0", "seed": 0, "config": {}}
    plan = {"sweep": "mine", "question": "Mine?", "preset": "demo", "trials": [trial]}
    (plan if lost in plan else trial).pop(lost)
    (tmp_path / "sweep.json").write_text(json.dumps(plan))
    with pytest.raises(ReportError, match="no sweep.json that this version can read"):
        read_plan(tmp_path)


def test_a_damaged_plan_of_the_last_report_is_passed_over(tmp_path: Path) -> None:
    plan = {"sweep": "mine", "question": "Mine?", "preset": "demo", "trials": []}
    (tmp_path / "sweep.json").write_text(json.dumps(plan))
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "plan.json").write_text("[]")
    assert read_plan(tmp_path) == plan
