"""Paired differences to `base` and `zero` as a forest plot: a point and its 95 % interval for every row."""

import math
from collections.abc import Sequence
from functools import partial
from textwrap import fill
from typing import TYPE_CHECKING

from sweeps.report.figure_lines import Style, styles
from sweeps.report.figure_spec import FigureSpec, Panel, basis_of
from sweeps.report.results import ArmResult, short_label
from sweeps.report.tables import Row, interval_text
from sweeps.statistics import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TICKS = (-50, 100, -90, 900, -80, 400, -20, 25, -10, 10, -30, 50, -65, 200, -5, 5, -95, 2000, -99, 10_000, -2, 2)
"""Per cents to label, the more telling first."""
_ROWS_PER_PANEL = 13
"""Rows that a panel of usual height holds."""
_LABEL_LETTERS = 28
"""Letters of a line of a label."""
_APART = 0.12
"""Least distance of two labels, as a share of the axis."""
_FINE = 10
"""Where less than so many per cents are shown, every whole one may be labelled."""


def difference_figure(
    results: Sequence[ArmResult], rows: Sequence[Row], title: str, seeds_of: str
) -> FigureSpec | None:
    """Perplexity at 4K-8K against each control, in per cent; None where nothing is compared."""
    looks, several = styles(results), len({row["group"] for row in rows}) > 1
    panels = []
    for name in ("base", "zero"):
        compared = [row for row in rows if row[f"vs_{name}"] is not None and math.isfinite(row[f"vs_{name}"])]
        if compared:
            points = [_point(row, name, several=several, look=looks[row["group"], row["arm"]]) for row in compared]
            height = max(0.4, (len(points) + 2) / _ROWS_PER_PANEL)
            panels.append(Panel(f"against {name}", partial(_draw, points=points), _in_words(points, name), height))
    if not panels:
        return None
    return FigureSpec(
        name="differences",
        title=title,
        explanation=(
            "Perplexity at positions 4K to 8K relative to each control on the same windows, with 95 % intervals: left "
            "of zero is better; an interval that holds zero shows no difference."
        ),
        basis=basis_of(results, seeds_of),
        panels=tuple(panels),
        remarks=("intervals over seeds where there are several, else over documents; hollow: no interval",),
        share_y=False,
        columns=2,
    )


Point = tuple[str, Interval, Style]


def _point(row: Row, name: str, *, several: bool, look: Style) -> Point:
    label = f"{row['group']}: {short_label(row['group'], row['arm'])}" if several else str(row["arm"])
    return label, Interval(row[f"vs_{name}"], row[f"vs_{name}_low"], row[f"vs_{name}_high"]), look


def _draw(axes: "Axes", points: Sequence[Point]) -> None:
    """On an axis of logarithms, so that half and double are equally far from zero."""
    for height, (_, interval, look) in enumerate(reversed(points)):
        at = _log(interval.estimate)
        sure = interval.low is not None and interval.high is not None and math.isfinite(interval.high)
        if interval.low is not None and interval.high is not None and sure:
            axes.plot([_log(interval.low), _log(interval.high)], [height] * 2, color=look.color, linewidth=2.6)
        face = look.color if sure else "white"
        axes.plot(at, height, marker=look.marker or "o", markersize=10, color=look.color, markerfacecolor=face)
    axes.set_yticks(range(len(points)), [fill(label, _LABEL_LETTERS) for label, _, _ in reversed(points)])
    axes.set_ylim(-0.7, len(points) - 0.3)
    axes.axvline(0, color="#444444", linewidth=1.4, linestyle=":")
    ends = [end for _, i, _ in points for end in (i.estimate, i.low, i.high) if end is not None and math.isfinite(end)]
    ticks = difference_ticks(min(ends), max(ends))
    axes.set_xticks([_log(tick) for tick in ticks], [f"{tick:+d}" if tick else "0" for tick in ticks])
    axes.set_xlabel("difference in perplexity, %")
    axes.grid(True, axis="x", color="#dddddd", linewidth=0.8)


def difference_ticks(low: float, high: float) -> list[int]:
    """Whole per cents around what is shown, zero among them, none too near to another."""
    low, high = min(low, 0.0), max(high, 0.0)
    apart = max(_log(high) - _log(low), 1e-6) * _APART
    chosen = [0]
    for tick in (*_TICKS, *range(math.floor(low), math.ceil(high) + 1)) if high - low < _FINE else _TICKS:
        if low <= tick <= high and all(abs(_log(tick) - _log(other)) >= apart for other in chosen):
            chosen.append(tick)
    return sorted(chosen)


def _log(percent: float) -> float:
    return math.log1p(percent / 100)


def _in_words(points: Sequence[Point], name: str) -> str:
    parts = [f"{label} {interval_text(interval)} %" for label, interval, _ in points]
    return f"Difference to {name} at positions 4K to 8K: {'; '.join(parts)}."
