"""How large the state of each layer and head is at the end of a window: one map per row, on one scale."""

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from storage.measurements import Measurements
from sweeps.report.comparison import plain_ticks
from sweeps.report.figure_spec import FigureSpec, Panel, seeds_text
from sweeps.report.results import ArmResult, RowKey, by_row
from sweeps.report.tables import best_rows
from sweeps.statistics import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MEASURED = "state_statistics_by_head"
_MOST_MAPS = 6
_FIRST_CHOICE = ("base", "state_passing", "zero")


def head_figure(results: Sequence[ArmResult], seeds_of: str) -> FigureSpec | None:
    """Layers x heads standard deviation at the last position, for the base, the control and what matters most."""
    measured = [result for result in results if _MEASURED in result.measurements]
    rows = by_row(measured)
    chosen = chosen_rows(rows, best_rows(results))
    if not chosen:
        return None
    maps = {key: np.mean([head_map(one.measurements[_MEASURED]) for one in rows[key]], axis=0) for key in chosen}
    readings = np.concatenate([found.ravel() for found in maps.values()])
    readings = readings[np.isfinite(readings) & (readings > 0)]
    if not readings.size:
        return None
    scale = float(readings.min()), float(readings.max())
    last = int(rows[chosen[0]][0].measurements[_MEASURED].position.max())
    return FigureSpec(
        name="state_std_by_head",
        title=f"Size of each head's state at position {last}",
        explanation=(
            "Standard deviation of the state of every layer and head at the end of a window: a few bright cells are "
            "heads whose states grow where the others have settled."
        ),
        basis=f"position {last}; mean of {seeds_text(measured, seeds_of)}",
        panels=tuple(
            Panel(rows[key][0].label, partial(_draw, found=found, scale=scale), _in_words(rows[key][0].label, found))
            for key, found in maps.items()
        ),
        remarks=("white: no such head, or not finite",),
        share_y=False,
    )


def chosen_rows(rows: dict[RowKey, list[ArmResult]], best: set[RowKey]) -> list[RowKey]:
    """At most six rows: base, state passing and control first, then the best swept values, then the others."""

    def importance(key: RowKey) -> int:
        arm, value = rows[key][0].arm, rows[key][0].value
        if arm in _FIRST_CHOICE and value is None:
            return _FIRST_CHOICE.index(arm)
        return len(_FIRST_CHOICE) + (key not in best)

    return sorted(sorted(rows, key=importance)[:_MOST_MAPS], key=list(rows).index)


def head_map(table: Measurements) -> Floats:
    """(layers, most heads) standard deviation at the last position; NaN where a layer has no such head."""
    at_last = table.position == table.position.max()
    layer, head = table.columns["layer"][at_last], table.columns["head"][at_last]
    layers = np.unique(layer)
    found = np.full((len(layers), int(head.max()) + 1), np.nan)
    found[np.searchsorted(layers, layer), head] = table.columns["std"][at_last]
    return found


def _draw(axes: "Axes", found: Floats, scale: tuple[float, float]) -> None:
    from matplotlib.colors import LogNorm

    low, high = scale
    shown = np.ma.masked_invalid(np.where(found > 0, found, np.nan))
    norm = LogNorm(low, high if high > low else low * 1.01)
    cells = axes.pcolormesh(shown, norm=norm, cmap="viridis", edgecolors="white", linewidth=0.2)
    bar = axes.figure.colorbar(cells, ax=axes, label="standard deviation")
    plain_ticks(bar.ax.yaxis, low, high)
    axes.invert_yaxis()
    for axis, count in ((axes.xaxis, found.shape[1]), (axes.yaxis, found.shape[0])):
        step = max(1, math.ceil(count / 8))
        numbers = list(range(0, count, step))
        axis.set_ticks([number + 0.5 for number in numbers], [str(number) for number in numbers])
    axes.set(xlabel="head", ylabel="layer")


def _in_words(label: str, found: Floats) -> str:
    finite = found[np.isfinite(found)]
    if not finite.size:
        return f"{label}: no finite state."
    layer, head = np.unravel_index(int(np.nanargmax(np.where(np.isfinite(found), found, np.nan))), found.shape)
    return (
        f"{label}: {found.shape[0]} layers of up to {found.shape[1]} heads, standard deviation {finite.min():.3g} to "
        f"{finite.max():.3g}, largest in layer {layer}, head {head}."
    )
