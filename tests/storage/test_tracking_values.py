import dataclasses
import json
import math

import numpy as np

from storage.tracking_values import Point, curve_points, flatten, shorten, summary_points, training_points
from storage.tracking_view import view_filter, view_path, view_state
from tests.curve_makers import make_curve


def test_settings_become_dotted_text() -> None:
    settings = {"trial": {"seed": 0, "precision": "fp32"}, "data": {"files": ("a.txt", "b.txt"), "field": None}}
    assert flatten(settings) == {
        "trial.seed": "0",
        "trial.precision": "fp32",
        "data.files": '["a.txt", "b.txt"]',
        "data.field": "none",
    }


def test_long_values_are_cut_visibly() -> None:
    assert shorten("abcdef", 6) == "abcdef"
    assert shorten("abcdefg", 6) == "abcde…"
    assert len(flatten({"files": "x" * 7000})["files"]) == 6000


def test_training_values_that_are_not_finite_are_left_out_and_counted() -> None:
    history = [{"step": 1, "loss": 2.0, "grad_norm": math.inf}, {"step": 2, "loss": math.nan, "grad_norm": 1.0}]
    points, left_out = training_points(history)
    assert points == [Point("train/loss", 2.0, 1), Point("train/grad_norm", 1.0, 2)]
    assert left_out == 2


def test_a_value_that_json_could_not_hold_counts_as_not_finite() -> None:
    points, left_out = training_points([{"step": 1, "loss": None, "skipped": 1, "zeroed_rows": 24, "state_rms": None}])
    assert points == [Point("train/skipped", 1.0, 1), Point("train/zeroed_rows", 24.0, 1)]
    assert left_out == 2


def test_a_step_made_twice_counts_once_with_its_later_value() -> None:
    points, _ = training_points([{"step": 2, "loss": 5.0}, {"step": 1, "loss": 4.0}, {"step": 2, "loss": 3.0}])
    assert points == [Point("train/loss", 4.0, 1), Point("train/loss", 3.0, 2)]


def test_a_curve_is_logged_at_its_right_edges() -> None:
    curve = make_curve()
    points, left_out = curve_points(curve, "ppl_by_position")
    assert [point.step for point in points] == curve.edges[1:].tolist()
    assert [point.value for point in points] == curve.perplexity().tolist()
    assert left_out == 0


def test_bins_that_are_not_finite_are_left_out_and_counted() -> None:
    curve = make_curve()
    broken = curve.nll_sum.copy()
    broken[0, 3], broken[1, 5] = np.nan, np.inf
    points, left_out = curve_points(dataclasses.replace(curve, nll_sum=broken), "key")
    assert left_out == 2
    assert {4, 6}.isdisjoint(np.searchsorted(curve.edges, [point.step for point in points]))


def test_summary_values_take_the_prefix_of_the_key() -> None:
    points = summary_points(make_curve(length=1024), "select/ppl_by_position")
    assert [point.key for point in points] == ["select/ppl_train", "select/ppl_1k", "select/bits_per_byte"]
    assert {point.key for point in summary_points(make_curve(), "ppl_by_position")} == {
        *("ppl_train", "ppl_1k", "ppl_8k", "ratio", "bits_per_byte")
    }


def test_the_shared_view_is_one_log_chart_of_one_sweep() -> None:
    state = view_state("ppl_by_position", "abc")
    (chart,) = json.loads(state)["compareRunCharts"]
    assert (chart["metricKey"], chart["xAxisScaleType"], chart["lineSmoothness"]) == ("ppl_by_position", "log", 0)
    assert view_filter(state) == "tags.`sweep.role` = 'trial' AND tags.`sweep.id` = 'abc'"
    assert len(state) < 5000, "MLflow cuts longer experiment tags"
    assert view_path("7").startswith("/#/experiments/7/runs?viewStateShareKey=")
