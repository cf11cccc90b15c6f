"""The two ends of the curves against the swept value: a line per arm that carries values, level lines for the rest."""

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from sweeps.report.comparison import perplexity_axis
from sweeps.report.figure_lines import Style, styles
from sweeps.report.figure_spec import FigureSpec, Panel, basis_of
from sweeps.report.rendering import line_look
from sweeps.report.results import ArmResult, by_row, groups_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HEADINGS = {"ppl_train": "PPL@train", "ppl_8k": "PPL@8K"}
_WIDE_RANGE = 10.0


def value_figure(results: Sequence[ArmResult], title: str, value_name: str, seeds_of: str) -> FigureSpec | None:
    """PPL@train and PPL@8K against the swept value; None where fewer than two values or no PPL@8K are there."""
    values = {result.value for result in results if result.value is not None}
    if len(values) < 2 or any(result.report.table()["ppl_8k"] is None for result in results):
        return None
    looks = arm_styles(results)
    groups = groups_of(results)
    limits = _limits(results)
    is_shared = len(set(limits.values())) == 1
    panels = [
        Panel(
            f"{group}: {heading}" if group else heading,
            partial(
                _draw,
                own=[r for r in results if r.group == group],
                key=key,
                name=value_name,
                looks=looks,
                limits=limits[key],
            ),
            _in_words([r for r in results if r.group == group], key, heading, value_name),
        )
        for group in groups
        for key, heading in _HEADINGS.items()
    ]
    return FigureSpec(
        name="scale",
        title=title,
        explanation=(
            f"Perplexity just inside the training length (PPL@train) and far beyond it (PPL@8K) against {value_name}; "
            "a point is a seed, a line joins their means, level lines are arms without the value."
        ),
        basis=basis_of(results, seeds_of),
        panels=tuple(panels),
        legend=tuple(looks.items()),
        columns=2,
        share_y=is_shared,
    )


def is_log(values: Sequence[float]) -> bool:
    """Whether the swept values belong on a logarithmic axis: all above zero and more than tenfold apart."""
    return min(values) > 0 and max(values) / min(values) > _WIDE_RANGE


def arm_styles(results: Sequence[ArmResult]) -> dict[str, Style]:
    """A style per arm that carries values and per label of those that do not: an arm looks as it does elsewhere."""
    plain = [
        ArmResult(r.arm if r.value is not None else r.short, r.arm, 0, None, None, r.report, None, 0.0) for r in results
    ]
    return {label: style for (_, label), style in styles(plain).items()}


def _limits(results: Sequence[ArmResult]) -> dict[str, tuple[float, float]]:
    """Perplexity limits by key: one pair for both, unless nothing could be told apart on it."""
    tables = [result.report.table() for result in results]
    ends = {key: _ends([value for table in tables if (value := table[key]) is not None]) for key in _HEADINGS}
    low, high = min(low for low, _ in ends.values()), max(high for _, high in ends.values())
    return dict.fromkeys(ends, (low, high)) if high / low < _WIDE_RANGE / 2 else ends


def _ends(values: Sequence[float]) -> tuple[float, float]:
    finite = [value for value in values if math.isfinite(value)] or [1.0, 10.0]
    return min(finite) / 1.04, max(finite) * 1.04


def means(own: Sequence[ArmResult], key: str) -> dict[str, list[tuple[float, float, list[float]]]]:
    """By arm: (value, exp of the mean log perplexity, the seeds' perplexities), in the order of the values."""
    found: dict[str, list[tuple[float, float, list[float]]]] = {}
    for row in by_row(own).values():
        points = _points(row, key)
        if row[0].value is not None:
            found.setdefault(row[0].arm, []).append((row[0].value, _mean(points), points))
    return {arm: sorted(points) for arm, points in found.items()}


def _points(row: Sequence[ArmResult], key: str) -> list[float]:
    return [value for value in (result.report.table()[key] for result in row) if value is not None]


def _mean(points: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(points))))


def _draw(
    axes: "Axes", own: Sequence[ArmResult], key: str, name: str, looks: dict[str, Style], limits: tuple[float, float]
) -> None:
    from matplotlib.ticker import NullFormatter

    swept = means(own, key)
    for row in by_row(own).values():
        if row[0].value is None:
            look = line_look(looks[row[0].short]) | {"marker": None}
            axes.axhline(_mean(_points(row, key)), **look)
    for arm, points in swept.items():
        color, marker = looks[arm].color, looks[arm].marker or "o"
        axes.plot(
            [value for value, _, _ in points],
            [mean for _, mean, _ in points],
            **line_look(looks[arm]) | {"marker": None},
        )
        for value, _, seeds in points:
            axes.plot([value] * len(seeds), seeds, linestyle="none", marker=marker, color=color, markersize=9, zorder=3)
    values = [value for points in swept.values() for value, _, _ in points]
    if is_log(values or [1.0]):
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set(xlabel=name, ylabel="perplexity")
    perplexity_axis(axes, *limits)


def _in_words(own: Sequence[ArmResult], key: str, heading: str, name: str) -> str:
    parts = [
        f"{arm}: " + ", ".join(f"{mean:.3g} at {value:g}" for value, mean, _ in points)
        for arm, points in means(own, key).items()
    ]
    return f"{heading} by {name}. {'; '.join(parts)}."
