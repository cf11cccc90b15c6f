import math

import numpy as np
import pytest

from sweeps.plan import make_plan
from sweeps.report.figure_lines import TOKENS_PER_POINT, lines, merge_thin_bins, position_ticks, styles, view_limits
from sweeps.report.results import ArmResult
from tests.curve_makers import make_curve

SIGMAS = (0.01, 0.1, 1.0)


def result(
    label: str, mean: float, rise: float, value: float | None = None, seed: int = 0, group: str = ""
) -> ArmResult:
    curve = make_curve(mean, rise=rise, noise=0.01, seed=seed, length=8192)
    arm = label.removeprefix(f"{group} ").split()[0]
    return ArmResult(label, arm, seed, value, curve, curve, None, 30.0, group)


@pytest.fixture(scope="module")
def results() -> list[ArmResult]:
    swept = [
        result(f"random_noise {sigma:g}", mean, rise, sigma)
        for sigma, mean, rise in zip(SIGMAS, (1.2, 1.25, 1.9), (0.1, 0.02, 0.0), strict=True)
    ]
    return [result("base", 1.2, 0.15), result("zero", 1.2, 0.15), *swept, result("state_passing", 1.2, 0.0)]


def test_swept_values_are_coloured_in_their_order(results: list[ArmResult]) -> None:
    def lightness(color: str) -> float:
        red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    found = styles(reversed(results))
    shades = [lightness(found["", f"random_noise {sigma:g}"].color) for sigma in SIGMAS]
    assert shades == sorted(shades)
    assert len({style.color for style in found.values()}) == len(results)


def test_an_arm_looks_the_same_in_every_sweep_and_group(results: list[ArmResult]) -> None:
    passing = styles(results)["", "state_passing"]
    assert styles(results[-1:])["", "state_passing"] == passing
    grouped = styles([result(f"{size} state_passing", 1.2, 0.0, group=size) for size in ("small", "large")])
    assert set(grouped.values()) == {passing}
    assert styles(results)["", "zero"].dash == "dash"


@pytest.mark.parametrize("sweep", ["interventions", "noise_scale", "steps", "learning_rate"])
def test_the_rows_of_a_sweep_are_told_apart_without_colour(sweep: str) -> None:
    plan = make_plan(sweep, "demo", [], 1)
    found = styles(trial.arm for trial in plan.trials)
    shapes = {(group, *style.shape) for (group, _), style in found.items()}
    assert len(shapes) == len(found) == len(plan.trials)


def test_two_lengths_of_longer_context_look_different() -> None:
    found = styles([result("longer_context 4", 1.2, 0.0), result("longer_context 8", 1.2, 0.0)])
    assert found["", "longer_context 4"].shape != found["", "longer_context 8"].shape
    assert found["", "longer_context 4"].color == found["", "longer_context 8"].color


def test_seeds_are_one_line_of_pooled_nll() -> None:
    seeds = [result("zero", 1.2, 0.1, seed=seed) for seed in range(3)]
    (line,) = lines(seeds, bands=False)
    nll = sum(found.report.nll_sum.sum(axis=0) for found in seeds)
    count = sum(found.report.count.sum(axis=0) for found in seeds)
    far = seeds[0].report.edges[1:] > 1024  # where bins hold tokens enough to be drawn as they are
    assert line.ppl_K[line.edges_K > 1024] == pytest.approx(np.exp(nll / count)[far], rel=1e-12)
    assert line.edges_K[line.edges_K > 1024].tolist() == seeds[0].report.edges[1:][far].tolist()


def test_few_lines_all_have_bands_many_only_those_that_matter(results: list[ArmResult]) -> None:
    assert all(line.band for line in lines(results[:3]))
    assert {line.label for line in lines(results) if line.band} == {"base", "random_noise 0.1", "state_passing"}


def test_limits_show_every_line_from_half_the_training_length_on(results: list[ArmResult]) -> None:
    drawn = lines(results, bands=False)
    low, high = view_limits(drawn)
    for line in drawn:
        later = line.ppl_K[line.edges_K >= 32]
        assert low < later.min() and later.max() < high


def test_a_diverged_arm_does_not_hide_the_others(results: list[ArmResult]) -> None:
    lost = result("random_noise 3", 1.5, 0.0, 3.0)
    lost.report.nll_sum[:, -6:] = math.inf
    limits = view_limits(lines([*results, lost], bands=False))
    assert all(math.isfinite(limit) and limit < 100 for limit in limits)


def test_ticks_are_powers_of_two_with_short_names() -> None:
    assert position_ticks(16384) == ([16, 64, 256, 1024, 4096, 16384], ["16", "64", "256", "1K", "4K", "16K"])


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
