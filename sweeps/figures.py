"""The figures of a sweep: perplexity against position for every arm, and the two ends of it against the swept value.

PNG by matplotlib (1600 x 1000 pixels, no display needed) and a self-contained interactive page by plotly. Both draw
the same lines (`sweeps.figure_lines`). Plotting libraries are imported when a figure is drawn.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeps.figure_lines import Line, lines, position_ticks, shared_axis, styles, view_limits
from sweeps.tables import ArmResult, by_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIZE_INCHES, _DPI = (16.0, 10.0), 100
_LOOK: dict[Any, Any] = {
    "font.size": 17,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "legend.fontsize": 16,
}
_DASHES: dict[str, Any] = {
    "solid": "-",
    "dash": (0, (5, 2)),
    "dot": (0, (1, 1.5)),
    "dashdot": (0, (5, 1.5, 1, 1.5)),
    "longdash": (0, (9, 2)),
}


def write_figures(folder: Path, results: Sequence[ArmResult], title: str, value_name: str = "sigma") -> list[Path]:
    """Write `comparison.png`, `comparison.html` and, when a value is swept, `scale.png`; return their paths."""
    paths = [comparison_png(folder / "comparison.png", results, title)]
    paths.append(comparison_html(folder / "comparison.html", results, title))
    reaches_8k = all(result.report.table()["ppl_8k"] is not None for result in results)
    if reaches_8k and len({result.value for result in results if result.value}) > 1:
        paths.append(scale_png(folder / "scale.png", results, title, value_name))
    return paths


def comparison_png(path: Path, results: Sequence[ArmResult], title: str) -> Path:
    """Perplexity against position (log2), one line per arm, shaded: 95 % over documents."""
    axis, drawn = shared_axis(results), lines(results)
    with _figure(path, panels=1) as (_, (axes,)):
        for line in drawn:
            _draw(axes, line)
        axes.set_xscale("log", base=2)
        axes.set_xticks(*position_ticks(axis.length))
        axes.set_xlim(drawn[0].edges_K[0], drawn[0].edges_K[-1])
        _perplexity_axis(axes, *view_limits(drawn, axis.train_length))
        _mark_training_length(axes, axis.train_length)
        axes.set_title(title, loc="left", fontweight="bold")
        axes.set(xlabel=f"position t ({axis.unit})", ylabel="perplexity")
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), title=_legend_title(drawn), alignment="left")
    return path


@contextmanager
def _figure(path: Path, panels: int) -> "Iterator[tuple[Figure, list[Axes]]]":
    """A figure with panels side by side on one scale, saved to `path` at the end of the block."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # No pyplot: it would hold global state and look for a display.
    with matplotlib.rc_context(_LOOK):
        figure = Figure(figsize=_SIZE_INCHES, dpi=_DPI, layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, list(figure.subplots(1, panels, squeeze=False, sharey=True)[0])
        figure.savefig(path)


def _mark_training_length(axes: "Axes", train_length: int) -> None:
    axes.axvline(train_length, color="#444444", linewidth=1.4, linestyle=":")
    text = f" training length {train_length}"
    axes.annotate(text, (train_length, 0.985), xycoords=("data", "axes fraction"), va="top")


def _draw(axes: "Axes", line: Line) -> None:
    style = line.style
    emphasis = 3 if line.arm in ("base", "zero", "state_passing") else 2
    axes.plot(
        line.edges_K,
        line.ppl_K,
        color=style.color,
        linewidth=style.width,
        linestyle=_DASHES[style.dash],
        label=line.label,
        zorder=emphasis,
    )
    if line.band is not None:
        axes.fill_between(line.edges_K, *line.band, color=style.color, alpha=0.10, linewidth=0, zorder=1)


def _perplexity_axis(axes: "Axes", low: float, high: float) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(LogLocator(subs=tuple(_subdivisions(low, high))))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(True, which="major", color="#dddddd", linewidth=0.8)


def _subdivisions(low: float, high: float) -> Sequence[float]:
    if high / low < 3:
        return np.arange(1.0, 10.0, 0.2 if high / low < 1.6 else 0.5).tolist()
    return (1, 2, 3, 4, 5, 7) if high / low < 30 else (1, 3)


def _legend_title(drawn: Sequence[Line]) -> str:
    return "arm (shaded: 95 %)" if any(line.band is not None for line in drawn) else "arm"


def comparison_html(path: Path, results: Sequence[ArmResult], title: str) -> Path:
    """The comparison as one self-contained page: hover for values, click a name to hide its line."""
    import plotly.graph_objects as go

    axis, drawn = shared_axis(results), lines(results)
    figure = go.Figure()
    for line in drawn:
        for trace in _traces(line):
            figure.add_trace(trace)
    ticks, names = position_ticks(axis.length)
    limits = [math.log10(limit) for limit in view_limits(drawn, axis.train_length)]
    figure.add_vline(x=axis.train_length, line_dash="dot", line_color="#444444")
    figure.update_xaxes(type="log", title=f"position t ({axis.unit})", tickvals=ticks, ticktext=names)
    figure.update_yaxes(type="log", title="perplexity", range=limits, dtick="D1")
    figure.update_layout(
        title=f"{title} (dotted: training length {axis.train_length})", template="plotly_white", hovermode="x unified"
    )
    figure.write_html(path, include_plotlyjs=True, full_html=True)
    return path


def _traces(line: Line) -> list[Any]:
    import plotly.graph_objects as go

    style, x = line.style, line.edges_K
    shown = {"color": style.color, "dash": style.dash, "width": style.width}
    traces = [go.Scatter(x=x, y=line.ppl_K, name=line.label, legendgroup=line.label, mode="lines", line=shown)]
    if line.band is not None:
        low, high = line.band
        around = {"x": np.concatenate([x, x[::-1]]), "y": np.concatenate([high, low[::-1]])}
        hidden = {"showlegend": False, "hoverinfo": "skip", "mode": "lines", "line": {"width": 0}}
        shade = {"fill": "toself", "fillcolor": style.color, "opacity": 0.12}
        traces.append(go.Scatter(**around, **hidden, **shade, legendgroup=line.label))
    return traces


def scale_png(path: Path, results: Sequence[ArmResult], title: str, value_name: str) -> Path:
    """PPL@train and PPL@8K against the swept value (log axis), other arms as horizontal lines."""
    with _figure(path, panels=2) as (figure, panels):
        for axes, key, heading in zip(panels, ("ppl_train", "ppl_8k"), ("PPL@train", "PPL@8K"), strict=True):
            _scale_panel(axes, results, key)
            axes.set(xscale="log", xlabel=value_name, title=heading)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        _perplexity_axis(panels[0], *panels[0].get_ylim())
        panels[1].grid(True, which="major", color="#dddddd", linewidth=0.8)
        panels[0].set_ylabel("perplexity")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        figure.suptitle(title, fontweight="bold")
    return path


def _scale_panel(axes: "Axes", results: Sequence[ArmResult], key: str) -> None:
    style = styles(results)
    swept: list[tuple[float, float]] = []
    for label, group in by_label(results).items():
        points = [value for value in (result.report.table()[key] for result in group) if value is not None]
        mean = math.exp(math.fsum(map(math.log, points)) / len(points)) if points else math.nan
        if group[0].value:
            swept.append((group[0].value, mean))
            axes.plot([group[0].value] * len(points), points, "o", color=style[label].color, markersize=9, zorder=3)
        elif group[0].value is None:
            look = style[label]
            axes.axhline(mean, color=look.color, linewidth=look.width, linestyle=_DASHES[look.dash], label=label)
    swept_arm = next(result.arm for result in results if result.value)
    axes.plot(
        *zip(*sorted(swept), strict=True), color="#666666", linewidth=1.4, label=f"{swept_arm} (a point per seed)"
    )
