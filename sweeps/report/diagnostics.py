"""The figures of the diagnostics: excess NLL, Effective Remembrance, size of the states, coverage."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from storage.measurements import Measurements
from sweeps.report.comparison import plain_ticks, position_axis
from sweeps.report.figure_lines import Style, styles
from sweeps.report.figure_spec import FigureSpec, Panel, counted, seeds_text
from sweeps.report.paper import BY_COLUMN, PaperCurve, paper_curves
from sweeps.report.rendering import line_look
from sweeps.report.results import ArmResult, by_row, groups_of
from sweeps.statistics import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS_PER_LINE = 5
_BEFORE_END = 31 / 32


@dataclass(frozen=True)
class Kind:
    """One figure: a column of a diagnostic against position."""

    measured: str
    column: str
    title: str
    y_name: str
    explanation: str
    linear: bool = False
    """A linear position axis; else the logarithm."""
    log_y: bool = False
    zero: bool = False
    """Whether a level line marks zero."""
    x_name: str = "position t"


KINDS = (
    Kind(
        "excess_nll",
        "excess_nll",
        "Excess NLL by position",
        "excess NLL, nats per token",
        "The same tokens scored with their whole history minus with only its last one to two training lengths: above "
        "zero, the long history does harm. Text that is hard by itself cancels.",
        zero=True,
    ),
    Kind(
        "effective_remembrance",
        "total_variation",
        "Effective Remembrance",
        "total variation",
        "How far the prediction after a text moves when its first t tokens are left out: high already at small t, the "
        "model still hangs on tokens of long ago. Where only a few tokens are kept it rises beyond what is shown.",
        linear=True,
        x_name="first token kept, t",
    ),
    Kind(
        "state_statistics",
        "std",
        "Size of the state by position",
        "standard deviation of the state",
        "Standard deviation over all entries of the recurrent state: one that keeps growing past the training length "
        "enters states that training never showed.",
        log_y=True,
    ),
    Kind(
        "state_statistics",
        "growing_share",
        "Share of heads that still grow",
        "share of heads",
        "Share of heads whose standard deviation is more than 5 % above that at half the position.",
    ),
    Kind(
        "coverage",
        "distance",
        "Distance to the states of training",
        "sliced Wasserstein distance",
        "How far the states at a position lie from those that training started from or passed through, in standard "
        "deviations of these: small means that training has been there.",
        log_y=True,
    ),
)


@dataclass(frozen=True)
class Series:
    """One row's readings, seeds averaged."""

    label: str
    position: Floats
    mean: Floats
    low: Floats
    """Of the seeds, the smallest and the largest."""
    high: Floats
    style: Style


def diagnostic_figures(results: Sequence[ArmResult], preset: str, seeds_of: str) -> list[FigureSpec]:
    """A figure per kind that some trial has measured."""
    found = [_figure_of(kind, results, preset, seeds_of) for kind in KINDS]
    return [figure for figure in found if figure is not None]


def _figure_of(kind: Kind, results: Sequence[ArmResult], preset: str, seeds_of: str) -> FigureSpec | None:
    measured = [result for result in results if kind.measured in result.measurements]
    if not measured:
        return None
    looks = styles(results)
    overlay = paper_curves(measured, preset, kind.column) if kind.column in BY_COLUMN else []
    panels = []
    for group in groups_of(measured):
        series = [series_of(row, kind, looks[key]) for key, row in by_row(measured).items() if key[0] == group]
        first = next(result for result in measured if result.group == group)
        own = [curve for curve in overlay if curve.group == group]
        draw = partial(
            _draw, kind=kind, series=series, unit=first.report.unit, trained=_trained(measured, group), paper=own
        )
        panels.append(Panel(group, draw, _in_words(kind, series)))
    return FigureSpec(
        name=kind.measured if kind.column in ("excess_nll", "total_variation", "std", "distance") else kind.column,
        title=kind.title,
        explanation=kind.explanation,
        basis=_basis(measured, kind.measured, seeds_of),
        panels=tuple(panels),
        legend=tuple(dict.fromkeys((row[0].short, looks[key]) for key, row in by_row(measured).items())),
        remarks=_remarks(kind, measured, overlay),
    )


def series_of(row: Sequence[ArmResult], kind: Kind, style: Style) -> Series:
    """The mean of the row's seeds at the positions that all of them have, and what they span."""
    tables = [result.measurements[kind.measured] for result in row if kind.measured in result.measurements]
    shared = sorted(set.intersection(*(set(table.position.tolist()) for table in tables)))
    values_SP = np.array([_at(table, kind.column, shared) for table in tables], dtype=np.float64)
    return Series(
        row[0].short, np.array(shared, np.float64), values_SP.mean(0), values_SP.min(0), values_SP.max(0), style
    )


def _at(table: Measurements, column: str, positions: Sequence[int]) -> Floats:
    return np.asarray(table.columns[column][np.searchsorted(table.position, positions)], np.float64)


def _trained(measured: Sequence[ArmResult], group: str) -> list[int]:
    return sorted({result.report.train_length for result in measured if result.group == group})


def _basis(measured: Sequence[ArmResult], name: str, seeds_of: str) -> str:
    windows = max(int(result.measurements[name].about.get("windows", 0)) for result in measured)
    documents = {len(set(result.report.document_ids[:windows])) for result in measured}
    shown = f"{counted({windows}, 'window')} of {counted(documents, 'document')}"
    return f"{shown}; {seeds_text(measured, seeds_of)}"


def _remarks(kind: Kind, measured: Sequence[ArmResult], overlay: Sequence[PaperCurve]) -> tuple[str, ...]:
    shaded = ("shaded: smallest to largest seed",) if any(len(row) > 1 for row in by_row(measured).values()) else ()
    return (
        *shaded,
        *_halves(kind, measured),
        *(f"thin dots in an arm's colour: {source}" for source in sorted({c.source for c in overlay})),
    )


def _halves(kind: Kind, measured: Sequence[ArmResult]) -> tuple[str, ...]:
    """What zero looks like: how far two samples of the same states lie apart."""
    apart = [result.measurements[kind.measured].summary.get("between_training_halves") for result in measured]
    known = [level for level in apart if level is not None]
    return (f"two halves of the training states lie {min(known):.2g} to {max(known):.2g} apart",) if known else ()


def _draw(
    axes: "Axes", kind: Kind, series: Sequence[Series], unit: str, trained: Sequence[int], paper: Sequence[PaperCurve]
) -> None:
    for index, one in enumerate(series):
        step = max(1, len(one.position) // _MARKERS_PER_LINE)
        axes.plot(one.position, one.mean, **line_look(one.style), markevery=(index % step, step))
        if (one.low < one.high).any():
            axes.fill_between(one.position, one.low, one.high, color=one.style.color, alpha=0.10, linewidth=0)
    color = {one.label: one.style.color for one in series}
    for curve in paper:
        axes.plot(curve.position, curve.level, color=color[curve.label], linewidth=1.4, linestyle=":")
    if kind.zero:
        axes.axhline(0, color="#444444", linewidth=1)
    shown = np.concatenate([one.mean for one in series])
    shown = shown[np.isfinite(shown) & (shown > 0)]
    if kind.log_y and shown.size:
        axes.set_yscale("log")
        plain_ticks(axes.yaxis, float(shown.min()), float(shown.max()))
    if kind.linear:
        axes.set_xlim(0, max(one.position[-1] for one in series))
        axes.set_ylim(0, _top(series))
    else:
        ends = [(one.position[0], one.position[-1]) for one in series if len(one.position)]
        position_axis(axes, max(1, min(low for low, _ in ends)), max(high for _, high in ends))
        for length in trained:
            axes.axvline(length, color="#444444", linewidth=1.4, linestyle=":")
    axes.grid(True, which="major", color="#dddddd", linewidth=0.8)
    axes.set(xlabel=f"{kind.x_name} ({unit})", ylabel=kind.y_name)


def _top(series: Sequence[Series]) -> float:
    """Above all readings but those at the very end, where everything rises steeply and would flatten the rest."""
    before_end = [one.high[one.position <= one.position[-1] * _BEFORE_END] for one in series]
    shown = np.concatenate(before_end)
    shown = shown[np.isfinite(shown)]
    return float(shown.max()) * 1.15 if shown.size and shown.max() > 0 else 1.0


def _in_words(kind: Kind, series: Sequence[Series]) -> str:
    parts = [
        f"{one.label} {one.mean[0]:.3g} at {one.position[0]:.0f} and {one.mean[-1]:.3g} at {one.position[-1]:.0f}"
        for one in series
        if len(one.position)
    ]
    return f"{kind.y_name} by position: {'; '.join(parts)}."
