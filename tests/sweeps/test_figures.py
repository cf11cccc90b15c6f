import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from sweeps.figure_lines import TOKENS_PER_POINT, lines, merge_thin_bins, position_ticks, styles, view_limits
from sweeps.figures import comparison_html, comparison_png, scale_png, write_figures
from sweeps.plan import make_plan
from sweeps.tables import ArmResult
from tests.curve_makers import make_curve

SIGMAS = (0.01, 0.1, 1.0)


def result(label: str, mean: float, rise: float, value: float | None = None, seed: int = 0) -> ArmResult:
    curve = make_curve(mean, rise=rise, noise=0.01, seed=seed, length=8192)
    return ArmResult(label, label.split()[0], seed, value, curve, curve, None, 30.0)


@pytest.fixture(scope="module")
def results() -> list[ArmResult]:
    swept = [
        result(f"random_noise {sigma:g}", mean, rise, sigma)
        for sigma, mean, rise in zip(SIGMAS, (1.2, 1.25, 1.9), (0.1, 0.02, 0.0), strict=True)
    ]
    return [result("base", 1.2, 0.15), result("zero", 1.2, 0.15), *swept, result("state_passing", 1.2, 0.0)]


def has_color(picture: np.ndarray, color: str, pixels: int = 200) -> bool:
    wanted = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return int((np.abs(picture[..., :3] - wanted).max(axis=-1) < 0.01).sum()) >= pixels


def test_every_arm_is_drawn_in_the_picture(results: list[ArmResult], tmp_path: Path) -> None:
    picture = imread(comparison_png(tmp_path / "comparison.png", results, "noise_scale"))
    assert picture.shape[:2] == (1000, 1600)
    for label, style in styles(results).items():
        assert has_color(picture, style.color), label


def test_the_interactive_page_holds_every_line_and_needs_no_network(results: list[ArmResult], tmp_path: Path) -> None:
    page = comparison_html(tmp_path / "comparison.html", results, "noise_scale").read_text()
    for found in results:
        assert f'"name":"{found.label}"' in page
    assert not re.search(r"<(script|link)[^>]*(src|href)=", page)
    assert "position t (bytes)" in page


def test_the_two_ends_are_drawn_against_the_swept_value(results: list[ArmResult], tmp_path: Path) -> None:
    picture = imread(scale_png(tmp_path / "scale.png", results, "noise_scale", "sigma"))
    assert picture.shape[:2] == (1000, 1600)
    halves = picture[:, :800], picture[:, 800:]
    for half in halves:
        for found in results:
            if found.value is not None:
                assert has_color(half, styles(results)[found.label].color, 50), found.label
        assert has_color(half, styles(results)["state_passing"].color)


def test_a_sweep_without_a_value_has_no_scale_figure(results: list[ArmResult], tmp_path: Path) -> None:
    named = [found for found in results if found.value is None]
    assert [path.name for path in write_figures(tmp_path, named, "arms")] == ["comparison.png", "comparison.html"]


def test_swept_values_are_coloured_in_their_order(results: list[ArmResult]) -> None:
    def lightness(color: str) -> float:
        red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    found = styles(reversed(results))
    shades = [lightness(found[f"random_noise {sigma:g}"].color) for sigma in SIGMAS]
    assert shades == sorted(shades)
    assert len({style.color for style in found.values()}) == len(results)


def test_an_arm_looks_the_same_in_every_sweep(results: list[ArmResult]) -> None:
    assert styles(results[:2])["base"] == styles(results)["base"]
    assert styles(results)["zero"].dash == "dash"


def test_the_arms_of_a_sweep_of_all_are_told_apart_by_colour_and_dash() -> None:
    plan = make_plan("interventions", "demo", [], 1)
    found = styles(trial.arm for trial in plan.trials)
    looks = {(style.color, style.dash) for style in found.values()}
    assert len(looks) == len(found) == len(plan.trials)


def test_two_lengths_of_longer_context_look_different() -> None:
    found = styles([result("longer_context 4", 1.2, 0.0), result("longer_context 8", 1.2, 0.0)])
    assert found["longer_context 4"] != found["longer_context 8"]


def test_seeds_are_one_line_of_pooled_nll() -> None:
    seeds = [result("zero", 1.2, 0.1, seed=seed) for seed in range(3)]
    (line,) = lines(seeds, bands=False)
    nll = sum(found.report.nll_sum.sum(axis=0) for found in seeds)
    count = sum(found.report.count.sum(axis=0) for found in seeds)
    far = seeds[0].report.edges[1:] > 1024  # where bins hold tokens enough to be drawn as they are
    assert line.ppl_K[line.edges_K > 1024] == pytest.approx(np.exp(nll / count)[far], rel=1e-12)
    assert line.edges_K[line.edges_K > 1024].tolist() == seeds[0].report.edges[1:][far].tolist()


def test_bands_mark_the_base_the_best_value_and_state_passing(results: list[ArmResult]) -> None:
    assert {line.label for line in lines(results) if line.band} == {"base", "random_noise 0.1", "state_passing"}


def test_limits_show_every_line_from_half_the_training_length_on(results: list[ArmResult]) -> None:
    drawn = lines(results, bands=False)
    low, high = view_limits(drawn, 64)
    for line in drawn:
        later = line.ppl_K[line.edges_K >= 32]
        assert low < later.min() and later.max() < high


def test_a_diverged_arm_does_not_hide_the_others(results: list[ArmResult], tmp_path: Path) -> None:
    lost = result("random_noise 3", 1.5, 0.0, 3.0)
    lost.report.nll_sum[:, -6:] = math.inf
    limits = view_limits(lines([*results, lost], bands=False), 64)
    assert all(math.isfinite(limit) and limit < 100 for limit in limits)
    write_figures(tmp_path, [*results, lost], "noise_scale")


def test_ticks_are_powers_of_two_with_short_names() -> None:
    assert position_ticks(16384) == ([16, 64, 256, 1024, 4096, 16384], ["16", "64", "256", "1K", "4K", "16K"])


def test_statistics_tables_and_figures_import_no_heavy_library() -> None:
    code = (
        "import sys, sweeps.statistics, sweeps.tables, sweeps.figures;"
        "print([n for n in ('torch', 'ray', 'mlflow', 'pandas', 'matplotlib', 'plotly', 'rich') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_drawn_points_rest_on_enough_tokens_and_keep_the_training_length() -> None:
    curve = make_curve(documents=16, train_length=64)
    merged = merge_thin_bins(curve)
    tokens = merged.count.sum(axis=0)
    assert 64 in merged.edges and merged.length == curve.length
    assert all(tokens[merged.edges[1:] != 64] >= TOKENS_PER_POINT)
    assert merged.nll_sum.sum() == pytest.approx(curve.nll_sum.sum()) and tokens.sum() == curve.count.sum()
    assert merged.range_perplexity(64, 16384) == pytest.approx(curve.range_perplexity(64, 16384))


def test_a_curve_of_few_tokens_keeps_one_point_on_either_side_of_the_training_length() -> None:
    merged = merge_thin_bins(make_curve(documents=1, length=128, train_length=64))
    assert merged.edges.tolist() == [0, 64, 128]
