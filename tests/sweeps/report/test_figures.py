import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imread

from sweeps.report.by_value import is_log, means, value_figure
from sweeps.report.comparison import comparison_figure
from sweeps.report.diagnostics import KINDS, diagnostic_figures, series_of
from sweeps.report.differences import difference_figure, difference_ticks
from sweeps.report.figure_lines import Style, styles
from sweeps.report.figure_spec import FigureSpec
from sweeps.report.heads import head_figure, head_map
from sweeps.report.rendering import inline_svg, write_figure
from sweeps.report.results import ArmResult
from sweeps.report.source import read_sweep
from sweeps.report.tables import summary_rows
from tests.curve_makers import make_curve
from tests.sweeps.report.makers import Made, diagnostics, make_folder

SVG = "{http://www.w3.org/2000/svg}"
SWEPT = [Made(f"random_noise {sigma:g}", value=sigma, rise=0.1 * rank) for rank, sigma in enumerate((0.01, 0.1, 1.0))]


def results(tmp_path: Path, trials: list[Made]) -> list[ArmResult]:
    return read_sweep(make_folder(tmp_path / "sweep", trials)).results


def draw(figure: FigureSpec) -> None:
    """Every panel, without a file."""
    for panel in figure.panels:
        canvas = FigureCanvasAgg(Figure((4, 3)))
        panel.draw(canvas.figure.subplots())
        canvas.draw()


def has_color(picture: np.ndarray, color: str, pixels: int = 200) -> bool:
    wanted = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return int((np.abs(picture[..., :3] - wanted).max(axis=-1) < 0.01).sum()) >= pixels


def test_every_row_is_drawn_in_the_picture(tmp_path: Path) -> None:
    found = results(
        tmp_path, [Made("base", rise=0.2), Made("zero", rise=0.15), *SWEPT, Made("state_passing", rise=0.0)]
    )
    png, svg = write_figure(tmp_path, comparison_figure(found, "made_up", "trial.seed"))
    picture = imread(png)
    assert picture.shape[:2] == (1000, 1600)
    for (_, label), style in styles(found).items():
        assert has_color(picture, style.color), label
    assert ElementTree.parse(svg).getroot().tag == f"{SVG}svg"


def test_a_figure_says_windows_documents_and_seeds(tmp_path: Path) -> None:
    found = results(tmp_path, [Made("base"), *(Made("zero", seed=seed) for seed in range(3))])
    figure = comparison_figure(found, "made_up", "base.seed")
    assert figure.basis == "8 windows of 8 documents, 16384 bytes each; 3 seeds (base.seed)"
    alone = comparison_figure(found[:2], "made_up", "trial.seed")
    assert alone.basis.endswith("one seed (trial.seed)")


def test_every_group_has_a_panel_on_a_shared_scale(tmp_path: Path) -> None:
    sizes = ("small", "large")
    trials = [Made(f"{size} {arm}", group=size) for size in sizes for arm in ("base", "zero")]
    figure = comparison_figure(results(tmp_path, trials), "made_up", "trial.seed")
    assert [panel.heading for panel in figure.panels] == list(sizes)
    assert figure.share_y and [label for label, _ in figure.legend] == ["base", "zero"]
    assert imread(write_figure(tmp_path, figure)[0]).shape[1] == 1600


def test_the_ends_against_the_value_are_means_of_logs_with_a_point_per_seed(tmp_path: Path) -> None:
    trials = [
        Made(f"zero {steps}", value=steps, seed=seed, mean=1 + seed / 10) for steps in (10, 100) for seed in (0, 1)
    ]
    found = results(tmp_path, [Made("base"), *trials])
    (points,) = means(found, "ppl_8k").values()
    for (value, mean, seeds), steps in zip(points, (10, 100), strict=True):
        own = [r.report.range_perplexity(4096, 8192) for r in found if r.value == steps]
        assert (value, seeds) == (steps, own)
        assert mean == pytest.approx(math.exp(sum(map(math.log, own)) / 2), rel=1e-12)


def test_the_figure_by_value_has_both_ends_of_each_group(tmp_path: Path) -> None:
    found = results(tmp_path, [Made("base"), *SWEPT, Made("state_passing", rise=0.0)])
    figure = value_figure(found, "made_up", "intervention.sigma", "trial.seed")
    assert figure is not None and [panel.heading for panel in figure.panels] == ["PPL@train", "PPL@8K"]
    assert [label for label, _ in figure.legend] == ["base", "random_noise", "state_passing"]
    picture = imread(write_figure(tmp_path, figure)[0])
    for _, style in figure.legend:
        assert has_color(picture, style.color)


def test_without_two_values_or_far_positions_there_is_no_figure_by_value(tmp_path: Path) -> None:
    found = results(tmp_path, [Made("base"), SWEPT[0]])
    assert value_figure(found, "made_up", "sigma", "trial.seed") is None
    short = results(tmp_path / "short", [Made(one.label, value=one.value, length=2048) for one in SWEPT])
    assert value_figure(short, "made_up", "sigma", "trial.seed") is None


def test_values_far_apart_are_on_a_logarithmic_axis() -> None:
    assert is_log([0.01, 0.1, 1.0]) and not is_log([0.0, 0.5, 1.0]) and not is_log([0.2, 1.0]) and not is_log([1, 10])


def test_differences_are_drawn_against_both_controls(tmp_path: Path) -> None:
    found = results(tmp_path, [Made("base", rise=0.2), Made("zero"), Made("state_passing", rise=0.0)])
    rows = summary_rows(found)
    figure = difference_figure(found, rows, "made_up", "trial.seed")
    assert figure is not None and [panel.heading for panel in figure.panels] == ["against base", "against zero"]
    assert f"state_passing {rows[2]['vs_zero']:+.1f} [" in figure.panels[1].says
    assert "zero" not in figure.panels[1].says.replace("Difference to zero", "")
    draw(figure)
    assert difference_figure(found[:1], summary_rows(found[:1]), "made_up", "trial.seed") is None


@pytest.mark.parametrize(("low", "high"), [(-84.0, 5.0), (-3.2, 1.1), (-0.4, -0.1), (-99.9, 4000.0), (5.0, 30.0)])
def test_difference_ticks_hold_zero_and_do_not_crowd(low: float, high: float) -> None:
    ticks = difference_ticks(low, high)
    assert 0 in ticks and ticks == sorted(set(ticks))
    places = [math.log1p(tick / 100) for tick in ticks]
    span = math.log1p(max(high, 0) / 100) - math.log1p(min(low, 0) / 100)
    assert all(after - before >= 0.12 * span for before, after in zip(places, places[1:], strict=False))


def test_diagnostics_have_a_figure_each_of_the_mean_over_seeds(tmp_path: Path) -> None:
    trials = [Made("base", diagnosed=True), *(Made("zero", seed=seed, rise=0.2, diagnosed=True) for seed in range(3))]
    found = results(tmp_path, trials)
    figures = diagnostic_figures(found, "demo", "trial.seed")
    names = ["excess_nll", "effective_remembrance", "state_statistics", "growing_share", "coverage"]
    assert [figure.name for figure in figures] == names
    assert figures[0].basis == "2 windows of 2 documents; 3 seeds (trial.seed)"
    kind = next(kind for kind in KINDS if kind.measured == "excess_nll")
    series = series_of(found[1:], kind, Style("#000000", "solid", 1.0))
    at_1024 = int(np.flatnonzero(series.position == 1024)[0])
    # 0.2 nats for each of five octaves, and 0.01 for each seed: 1.00, 1.01, 1.02.
    assert (series.low[at_1024], series.mean[at_1024], series.high[at_1024]) == pytest.approx((1.0, 1.01, 1.02))
    for figure in figures:
        draw(figure)
    assert diagnostic_figures(results(tmp_path / "none", [Made("base")]), "demo", "trial.seed") == []


def test_the_map_of_heads_holds_the_last_position(tmp_path: Path) -> None:
    made = Made("base", diagnosed=True, rise=0.5)
    found = head_map(diagnostics(made)[3])
    # 8 octaves of 0.5 above 1, times 1 to 2.2 by layer and head.
    assert found == pytest.approx(5.0 * np.array([[1.0, 1.1, 1.2], [2.0, 2.1, 2.2]]))
    trials = [made, *(Made(f"random_noise {sigma}", value=sigma, diagnosed=True) for sigma in range(1, 9))]
    figure = head_figure(results(tmp_path, trials), "trial.seed")
    assert figure is not None and len(figure.panels) == 6 and figure.panels[0].heading == "base"
    assert "largest in layer 1, head 2" in figure.panels[0].says
    draw(figure)


def test_states_that_are_not_finite_leave_a_map_of_the_others(tmp_path: Path) -> None:
    found = results(tmp_path, [Made("base", diagnosed=True)])
    columns = found[0].measurements["state_statistics_by_head"].columns
    columns["std"] = np.append(columns["std"][:-1], math.inf)
    figure = head_figure(found, "trial.seed")
    assert figure is not None and "largest in layer 1, head 1" in figure.panels[0].says
    draw(figure)


def test_a_diverged_arm_is_drawn_without_trouble(tmp_path: Path) -> None:
    found = results(tmp_path, [Made("base"), *SWEPT])
    lost = found[1].report.nll_sum.copy()
    lost[:, -6:] = math.inf
    found[1] = replace(found[1], report=replace(found[1].report, nll_sum=lost))
    rows = summary_rows(found)
    for figure in (
        comparison_figure(found, "made_up", "trial.seed"),
        value_figure(found, "made_up", "sigma", "trial.seed"),
        difference_figure(found, rows, "made_up", "trial.seed"),
    ):
        assert figure is not None
        draw(figure)


def test_an_inline_picture_is_named_described_and_has_ids_of_its_own(tmp_path: Path) -> None:
    figure = comparison_figure(results(tmp_path, [Made("base")]), "made_up", "trial.seed")
    first, second = (ElementTree.fromstring(inline_svg(figure.panels[0], name, "One < two")) for name in ("a", "b"))
    assert first.get("role") == "img" and first.get("aria-labelledby") == "a-title a-desc"
    assert first.findtext(f"{SVG}title") == "One < two"
    assert first.findtext(f"{SVG}desc", "").startswith("Perplexity by position in bytes: base ")
    identities = [{node.get("id") for node in tree.iter() if node.get("id")} for tree in (first, second)]
    assert identities[0] and not identities[0] & identities[1]
    refers = [value for node in first.iter() for value in node.attrib.values() if "#" in value and "url" in value]
    assert refers and all(value.split("#")[1].rstrip(")") in identities[0] for value in refers)


def test_the_same_figure_gives_the_same_files(tmp_path: Path) -> None:
    figure: FigureSpec = comparison_figure(results(tmp_path, [Made("base"), Made("zero")]), "made_up", "trial.seed")
    first, second = (write_figure(tmp_path / name, figure) for name in ("first", "second"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_a_name_with_dollar_signs_is_no_formula(tmp_path: Path) -> None:
    figure = comparison_figure(results(tmp_path, [Made("zero $\\frac$", arm="zero")]), "$x", "trial.seed")
    write_figure(tmp_path, figure)


def test_the_report_imports_no_heavy_library() -> None:
    code = (
        "import sys, sweeps.statistics, sweeps.report.make;"
        "print([n for n in ('torch', 'ray', 'mlflow', 'pandas', 'matplotlib', 'rich') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_of_several_groups_each_has_its_base_among_the_maps(tmp_path: Path) -> None:
    arms = ("base", "zero", "state_passing", "tbtt")
    trials = [Made(f"{size} {arm}", group=size, diagnosed=True) for size in ("s", "m", "l") for arm in arms]
    figure = head_figure(results(tmp_path, trials), "trial.seed")
    assert figure is not None
    assert [panel.heading for panel in figure.panels] == [
        f"{size} {arm}" for size in ("s", "m", "l") for arm in ("base", "state_passing")
    ]


def test_every_training_length_of_a_group_is_marked(tmp_path: Path) -> None:
    found = [
        replace(one, report=make_curve(train_length=length), select=make_curve(train_length=length))
        for one, length in zip(results(tmp_path, [Made("zero 64"), Made("zero 128")]), (64, 128), strict=True)
    ]
    axes = Figure().subplots()
    comparison_figure(found, "made_up", "trial.seed").panels[0].draw(axes)
    upright = sorted(
        {float(np.asarray(line.get_xdata())[0]) for line in axes.lines if np.shape(line.get_xdata()) == (2,)}
    )
    assert upright == [64.0, 128.0]
    assert [text.get_text() for text in axes.texts] == [" training length 64, 128"]
    assert summary_rows(found)[1]["ppl_8k"] is not None
