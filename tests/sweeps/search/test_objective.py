"""Objectives: which positions they read, on one scale for all trials."""

import math
from dataclasses import replace

import numpy as np
import pytest

from storage.curves import Curve, bin_edges
from sweeps.search.objective import make_objective, pooled_curve
from sweeps.search.plan import SearchPlan
from tests.sweeps.search.searches import select_curve, small_plan


def curve_with(values: dict[tuple[int, int], float], *, train_length: int = 64) -> Curve:
    """A curve of 1024 positions whose mean NLL is 1 but for these ranges (low, high]."""
    flat = select_curve(1.0)
    edges = bin_edges(1024, train_length)
    nll = np.ones(len(edges) - 1)
    for (low, high), value in values.items():
        nll[(edges[:-1] >= low) & (edges[1:] <= high)] = value
    count = np.tile(np.diff(edges), (len(flat.starts), 1))
    return replace(flat, edges=edges, nll_sum=nll * count, count=count, train_length=train_length)


def test_far_is_the_mean_over_positions_past_the_training_length() -> None:
    objective = small_plan().objective
    assert objective.far == (64, 1024)
    assert objective.values(curve_with({(0, 64): 9.0})) == pytest.approx((1.0,))
    # 512 of the 960 positions past 64 cost 2 instead of 1.
    assert objective.values(curve_with({(512, 1024): 2.0})) == pytest.approx((1 + 512 / 960,))


def test_far_begins_past_the_longest_context_for_every_trial() -> None:
    objective = small_plan("full").objective
    assert objective.far == (256, 1024)
    short, long = (objective.values(curve_with({(0, 256): 9.0}, train_length=length)) for length in (32, 256))
    assert short == long == pytest.approx((1.0,))


def test_far_and_near_are_two_numbers() -> None:
    objective = small_plan(objective="far_and_near").objective
    assert objective.directions == ("minimize", "minimize")
    assert objective.near == (32, 64)
    assert objective.values(curve_with({(32, 64): 0.5})) == pytest.approx((1.0, 0.5))


def test_the_horizon_is_the_last_position_at_or_below_the_lowest_of_the_training_length() -> None:
    objective = small_plan(objective="horizon").objective
    assert objective.directions == ("maximize",)
    assert objective.values(curve_with({(256, 1024): 1.2})) == (256.0,)
    assert objective.values(curve_with({})) == (1024.0,)


def test_the_horizon_is_that_of_the_command_s_training_length() -> None:
    objective = small_plan("full", objective="horizon").objective
    curve = curve_with({(64, 128): 0.5}, train_length=128)
    # Within 64 positions the lowest is 1, so that 0.5 beyond is no lower p*.
    assert objective.values(curve) == (1024.0,)


@pytest.mark.parametrize("name", ["far", "horizon", "far_and_near"])
def test_a_model_without_finite_likelihood_has_no_finite_objective(name: str) -> None:
    objective = small_plan(objective=name).objective
    assert not all(math.isfinite(value) for value in objective.values(select_curve(math.nan)))


def test_what_a_trial_reports_has_the_objective_of_its_whole_curve() -> None:
    plan: SearchPlan = small_plan()
    curve = curve_with({(512, 1024): 1.7})
    sums = (curve.edges[1:], curve.nll_sum.sum(axis=0), curve.count.sum(axis=0))
    bins = [list(one) for one in zip(*(column.tolist() for column in sums), strict=True)]
    for name in ("far", "horizon", "far_and_near"):
        objective = make_objective(name, plan.settings, plan.space)
        assert objective.values(pooled_curve(bins, 64)) == pytest.approx(objective.values(curve))


def test_the_meaning_says_positions_and_direction() -> None:
    assert small_plan().objective.meaning == "mean log perplexity (nats) over positions 65 to 1024; lowest"
