import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from sweeps.report.comparison import comparison_figure
from sweeps.report.diagnostics import diagnostic_figures
from sweeps.report.figure_lines import styles
from sweeps.report.page import page
from sweeps.report.paper import BY_COLUMN, FOLDER, paper_curves
from sweeps.report.results import ArmResult
from sweeps.report.source import read_sweep
from sweeps.report.tables import summary_rows
from tests.sweeps.report.makers import Made, make_folder


def trial(arm: str, size: str = "370m", steps: int = 100, architecture: str = "mamba2", **more: bool) -> Made:
    config: dict[str, dict[str, Any]] = {
        "model": {"architecture": architecture, "size": size},
        "trial": {"steps": steps},
    }
    return Made(arm, config=config, diagnosed=more.get("diagnosed", False))


def results(tmp_path: Path, *trials: Made) -> list[ArmResult]:
    return read_sweep(make_folder(tmp_path / "sweep", list(trials), preset="paper")).results


def test_hundred_steps_meet_figure_5(tmp_path: Path) -> None:
    found = paper_curves(results(tmp_path, trial("base"), trial("tbtt")), "paper", "ppl")
    assert [curve.label for curve in found] == ["base", "tbtt"]
    assert {curve.source for curve in found} == {"arXiv:2507.02782, Fig. 5"}
    assert found[0].position[0] == 512 and found[0].level[0] == 8.57
    assert list(found[0].position) == sorted(found[0].position)


def test_five_hundred_steps_meet_figure_1b(tmp_path: Path) -> None:
    found = paper_curves(
        results(tmp_path, trial("base", "130m", 500), trial("state_passing", "130m", 500)), "paper", "ppl"
    )
    assert [(curve.label, curve.source) for curve in found] == [
        ("base", "arXiv:2507.02782, Fig. 1b"),
        ("state_passing", "arXiv:2507.02782, Fig. 1b"),
    ]
    assert (found[0].position[0], found[0].level[0]) == (16, 29.4)


def test_what_leaves_the_plot_of_the_figure_is_not_drawn(tmp_path: Path) -> None:
    (found,) = paper_curves(results(tmp_path, trial("base", "780m", 500)), "paper", "ppl")
    assert max(found.level) < 30 and max(found.position) == 4096


@pytest.mark.parametrize(
    ("made", "preset"),
    [
        (trial("state_passing"), "demo"),
        (trial("state_passing", "demo"), "paper"),
        (trial("state_passing", architecture="gla"), "paper"),
        (trial("state_passing", steps=200), "paper"),
        (trial("zero"), "paper"),
    ],
    ids=["demo", "size", "architecture", "steps", "arm"],
)
def test_what_the_paper_did_not_run_has_no_curve(made: Made, preset: str, tmp_path: Path) -> None:
    assert paper_curves(results(tmp_path, made), preset, "ppl") == []


def test_the_base_without_a_figure_of_these_steps_is_that_of_the_other(tmp_path: Path) -> None:
    (found,) = paper_curves(results(tmp_path, trial("base", "130m", 100)), "paper", "ppl")
    assert found.source.endswith("Fig. 1b")


def test_the_paper_is_drawn_dotted_in_the_arms_colour_with_its_source(tmp_path: Path) -> None:
    found = results(tmp_path, trial("base"), trial("state_passing"))
    overlay = paper_curves(found, "paper", "ppl")
    figure = comparison_figure(found, "made_up", "trial.seed", overlay)
    axes = Figure().subplots()
    figure.panels[0].draw(axes)
    dotted = [line for line in axes.lines if line.get_linestyle() == ":" and len(np.asarray(line.get_xdata())) > 2]
    colors = [style.color for style in styles(found).values()]
    assert [line.get_color() for line in dotted] == colors
    assert [tuple(np.asarray(line.get_ydata())) for line in dotted] == [curve.level for curve in overlay]
    assert "thin dots in an arm's colour: arXiv:2507.02782, Fig. 5" in figure.remarks


def test_diagnostics_have_the_papers_curves_too(tmp_path: Path) -> None:
    made = [trial(arm, "130m", 500, diagnosed=True) for arm in ("base", "state_passing")]
    found = results(tmp_path, *made)
    remarks = {figure.name: figure.remarks for figure in diagnostic_figures(found, "paper", "trial.seed")}
    assert remarks["effective_remembrance"] == ("thin dots in an arm's colour: arXiv:2507.02782, Fig. 1e",)
    assert remarks["state_statistics"] == ("thin dots in an arm's colour: arXiv:2507.02782, Fig. 4 (size not stated)",)
    assert remarks["coverage"] == ("two halves of the training states lie 0.25 to 0.25 apart",)


def test_the_page_of_a_paper_sweep_names_the_source(tmp_path: Path) -> None:
    sweep = read_sweep(make_folder(tmp_path / "sweep", [trial("base"), trial("tbtt")], preset="paper"))
    figure = comparison_figure(sweep.results, "x", "trial.seed", paper_curves(sweep.results, "paper", "ppl"))
    assert "arXiv:2507.02782, Fig. 5" in page(sweep, summary_rows(sweep.results), [figure])


def test_every_shipped_curve_can_be_read_and_is_described() -> None:
    described = (FOLDER / "README.md").read_text()
    assert "CC BY 4.0" in described and "Reading error" in described
    files = {figure.file: figure for figures in BY_COLUMN.values() for figure in figures}
    assert {path.name for path in FOLDER.glob("*.csv")} == files.keys()
    for name, figure in files.items():
        assert name in described
        with (FOLDER / name).open(newline="") as opened:
            rows = list(csv.DictReader(opened))
        assert all(float(row[figure.column]) > 0 and float(row[figure.position]) > 0 for row in rows)
