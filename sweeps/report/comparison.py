"""The figure of a sweep: perplexity against position for every row, one panel per group."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from sweeps.report.figure_lines import Line, lines, position_ticks, view_limits
from sweeps.report.figure_spec import FigureSpec, Panel, basis_of
from sweeps.report.paper import PaperCurve
from sweeps.report.rendering import line_look
from sweeps.report.results import ArmResult, groups_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

_POINTS_PER_MARKER = 6
_IN_FRONT = ("base", "zero", "state_passing")


def comparison_figure(
    results: Sequence[ArmResult], title: str, seeds_of: str, paper: Sequence[PaperCurve] = ()
) -> FigureSpec:
    """Perplexity against position (log2), one line per row, shaded: 95 % over documents; dotted and thin: the paper."""
    drawn = lines(results)
    groups = groups_of(results)
    limits = view_limits(drawn) if _share_a_unit(results) else None
    panels = []
    for group in groups:
        own = [line for line in drawn if line.group == group]
        overlay = [curve for curve in paper if curve.group == group]
        unit = next(result.report.unit for result in results if result.group == group)
        panels.append(
            Panel(
                group,
                partial(_draw, own=own, overlay=overlay, unit=unit, limits=limits or view_limits(own)),
                _in_words(own, unit),
            )
        )
    return FigureSpec(
        name="comparison",
        title=title,
        explanation=(
            "Perplexity against position: a line that stays level past the training length (dotted upright) "
            "generalises, one that rises does not."
        ),
        basis=basis_of(results, seeds_of),
        panels=tuple(panels),
        legend=tuple(dict.fromkeys((line.label, line.style) for line in drawn)),
        remarks=_remarks(drawn, paper),
        share_y=limits is not None,
    )


def _share_a_unit(results: Sequence[ArmResult]) -> bool:
    return len({result.report.unit for result in results}) == 1


def _remarks(drawn: Sequence[Line], paper: Sequence[PaperCurve]) -> tuple[str, ...]:
    shaded = ("shaded: 95 % over documents",) if any(line.band is not None for line in drawn) else ()
    sources = sorted({curve.source for curve in paper})
    return (*shaded, *(f"thin dots in an arm's colour: {source}" for source in sources))


def _draw(
    axes: "Axes", own: Sequence[Line], overlay: Sequence[PaperCurve], unit: str, limits: tuple[float, float]
) -> None:
    for index, line in enumerate(own):
        _draw_line(axes, line, index)
    color = {line.label: line.style.color for line in own}
    for curve in overlay:
        axes.plot(curve.position, curve.level, color=color[curve.label], linewidth=1.4, linestyle=":", zorder=1.5)
    length = int(max(line.edges_K[-1] for line in own))
    position_axis(axes, min(line.edges_K[0] for line in own), length)
    perplexity_axis(axes, *limits)
    mark_training_lengths(axes, own)
    axes.set(xlabel=f"position t ({unit})", ylabel="perplexity")


def position_axis(axes: "Axes", low: float, high: float) -> None:
    """A logarithmic axis of positions with names such as 256, 1K, 16K."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(*position_ticks(int(high)))
    axes.set_xlim(low, high)


def _draw_line(axes: "Axes", line: Line, index: int) -> None:
    # Markers of neighbouring lines at different points, or those in front would hide the others.
    step = max(1, len(line.edges_K) // _POINTS_PER_MARKER)
    emphasis = 3 if line.arm in _IN_FRONT else 2
    axes.plot(line.edges_K, line.ppl_K, **line_look(line.style), markevery=(index % step, step), zorder=emphasis)
    if line.band is not None:
        axes.fill_between(line.edges_K, *line.band, color=line.style.color, alpha=0.10, linewidth=0, zorder=1)


def mark_training_lengths(axes: "Axes", own: Sequence[Line]) -> None:
    """A dotted upright at every training length of the panel's lines, with its number where there is one."""
    found = {line.train_length: line.style.color for line in own}
    for length, color in found.items():
        axes.axvline(length, color="#444444" if len(found) == 1 else color, linewidth=1.4, linestyle=":")
    text = " training length " + ", ".join(map(str, sorted(found)))
    axes.annotate(text, (min(found), 0.985), xycoords=("data", "axes fraction"), va="top")


def perplexity_axis(axes: "Axes", low: float, high: float) -> None:
    """A logarithmic axis from `low` to `high` whose ticks are plain numbers."""
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    plain_ticks(axes.yaxis, low, high)
    axes.grid(True, which="major", color="#dddddd", linewidth=0.8)


def plain_ticks(axis: "Axis", low: float, high: float) -> None:
    """Plain numbers on a logarithmic axis that reaches from `low` to `high`."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=tuple(_subdivisions(low, high))))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _subdivisions(low: float, high: float) -> Sequence[float]:
    if high / low < 3:
        step = 0.05 if high / low < 1.1 else 0.2 if high / low < 1.6 else 0.5
        return np.arange(1.0, 10.0, step).tolist()
    return (1, 2, 3, 4, 5, 7) if high / low < 12 else (1, 2, 5) if high / low < 100 else (1, 3)


def _in_words(own: Sequence[Line], unit: str) -> str:
    """For those who cannot see it: where each line is at the training length and where at the end."""
    parts = []
    for line in own:
        inside = line.ppl_K[np.searchsorted(line.edges_K, line.train_length, side="right") - 1]
        parts.append(
            f"{line.label} {inside:.3g} at {line.train_length} and {line.ppl_K[-1]:.3g} at {line.edges_K[-1]:.0f}"
        )
    return f"Perplexity by position in {unit}: {'; '.join(parts)}."
