"""What the figures draw: one line per row with its colour, dash, marker and band. No plotting library at import.

Colours are safe for colour-blind readers: black, grey and the Okabe-Ito palette for named arms, the sequential map
viridis (dark = small value) without its palest end for a swept value, so the order of the values shows. Related arms
share a colour and differ in dash or marker: independent noise is blue, correlated noise green, passed states vermilion.
Without any colour, dash and marker together tell the lines of a group apart.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np

from storage.curves import Curve
from sweeps.report.results import ArmResult, RowKey, by_row, short_label
from sweeps.report.tables import best_rows
from sweeps.statistics import Floats, pool, ppl_band

Dash = Literal["solid", "dash", "dot", "dashdot", "longdash"]
Marker = Literal["", "o", "s", "^", "v", "D", "P", "X", "<", ">"]

_NAMED: dict[str, tuple[str, Dash, float, Marker]] = {
    "base": ("#000000", "solid", 2.6, ""),
    "zero": ("#6f6f6f", "dash", 2.6, ""),
    "longer_context": ("#56B4E9", "dashdot", 2.6, ""),
    "random_noise": ("#0072B2", "dash", 2.2, "o"),
    "fitted_noise": ("#0072B2", "solid", 2.2, "o"),
    "correlated_noise head": ("#009E73", "dot", 2.2, "s"),
    "correlated_noise layer": ("#009E73", "dash", 2.2, "s"),
    "correlated_noise all": ("#009E73", "solid", 2.2, "s"),
    "state_passing": ("#D55E00", "solid", 3.2, "D"),
    "shuffled_entries": ("#D55E00", "dot", 2.2, "^"),
    "mixture": ("#D55E00", "dashdot", 2.2, "^"),
    "tbtt": ("#CC79A7", "solid", 2.6, "v"),
    "reservoir": ("#E69F00", "solid", 2.6, "P"),
}
"""By label, or by arm for all its labels."""
_OTHERS = ("#B0A000", "#CC79A7", "#E69F00", "#0072B2", "#009E73", "#56B4E9")
_DASHES: tuple[Dash, ...] = ("solid", "dash", "dot", "dashdot", "longdash")
_MARKERS: tuple[Marker, ...] = ("o", "s", "^", "X", "<", ">", "P", "v", "D")
_BANDED_ARMS = ("base", "state_passing")
_MOST_BANDS = 5
"""So many lines may all have a band; of more, only those that matter most."""
TOKENS_PER_POINT = 512
"""A drawn point rests on at least so many tokens, over all windows."""


@dataclass(frozen=True)
class Style:
    """How a row is drawn, in the same way in every figure."""

    color: str
    """`#rrggbb`."""
    dash: Dash
    width: float
    """In points."""
    marker: Marker = ""
    """As matplotlib names it; empty: none."""

    @property
    def shape(self) -> tuple[str, str]:
        """What tells it from others without its colour."""
        return self.dash, self.marker


@dataclass(frozen=True)
class Line:
    """One row's perplexity against position, seeds pooled."""

    group: str
    label: str
    """Within its group."""
    arm: str
    edges_K: Floats
    """Right bin edges: the position up to which (inclusive) a bin reaches."""
    ppl_K: Floats
    style: Style
    band: tuple[Floats, Floats] | None
    """95 % bounds over documents, where asked for."""
    train_length: int


class Labelled(Protocol):
    """What a style is chosen by; an `ArmResult` is one, a planned trial may be another."""

    @property
    def group(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def arm(self) -> str: ...
    @property
    def value(self) -> float | None: ...


def styles(arms: Iterable[Labelled]) -> dict[RowKey, Style]:
    """A style per row: named arms have their own, swept values run along the colour map in order of value.

    Rows of different groups may look alike: they are drawn in panels of their own.
    """
    rows: dict[RowKey, Labelled] = {}
    for entry in arms:
        rows.setdefault((entry.group, entry.label), entry)
    values = sorted({entry.value for entry in rows.values() if entry.value is not None})
    swept_arms = list(dict.fromkeys(entry.arm for entry in rows.values() if entry.value is not None))
    found: dict[RowKey, Style] = {}
    # Named arms first, so that they look the same beside any swept values.
    for key, entry in sorted(rows.items(), key=lambda row: row[1].value is not None):
        taken = {style.shape for other, style in found.items() if other[0] == key[0]}
        if entry.value is None:
            found[key] = _named_style(entry, taken)
        else:
            found[key] = _swept_style(values.index(entry.value), len(values), swept_arms.index(entry.arm), taken)
    return {key: found[key] for key in rows}


def _named_style(entry: Labelled, taken: set[tuple[str, str]]) -> Style:
    named = _NAMED.get(short_label(entry.group, entry.label)) or _NAMED.get(entry.arm)
    style = Style(*named) if named else Style(_OTHERS[len(taken) % len(_OTHERS)], "longdash", 2.2, "o")
    # A second label of one arm, such as another length of `longer_context`, must not look like the first.
    return style if style.shape not in taken else _another_shape(style, _MARKERS, _DASHES[::-1], taken)


def _swept_style(rank: int, values: int, arm: int, taken: set[tuple[str, str]]) -> Style:
    """The colour says the value, the dash the arm, the marker both."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    color = to_hex(colormaps["viridis"](0.05 + 0.83 * rank / max(values - 1, 1)))
    first = arm % len(_DASHES)
    style = Style(color, _DASHES[first], 1.8, _MARKERS[rank % len(_MARKERS)])
    dashes = _DASHES[first:] + _DASHES[:first]
    markers = _MARKERS[rank % len(_MARKERS) :] + _MARKERS[: rank % len(_MARKERS)]
    return style if style.shape not in taken else _another_shape(style, markers, dashes, taken)


def _another_shape(
    style: Style, markers: Sequence[Marker], dashes: Sequence[Dash], taken: set[tuple[str, str]]
) -> Style:
    """The same colour with the first dash and marker that no other row of the group has."""
    free = [replace(style, dash=dash, marker=one) for dash in dashes for one in markers if (dash, one) not in taken]
    return free[0] if free else style


def lines(results: Sequence[ArmResult], bands: bool = True) -> list[Line]:
    """A line per row; bands for all where they are few, else for the base, the best swept values and state passing."""
    style, rows, best = styles(results), by_row(results), best_rows(results) if bands else set()
    drawn = []
    for key, row in rows.items():
        # Seeds see the same windows: several of them add no text, and every line is to have the same points.
        pooled = merge_thin_bins(pool([result.report for result in row]), TOKENS_PER_POINT * len(row))
        is_few = sum(other[0] == key[0] for other in rows) <= _MOST_BANDS
        wants_band = bands and (is_few or key in best or row[0].arm in _BANDED_ARMS)
        drawn.append(
            Line(
                row[0].group,
                row[0].short,
                row[0].arm,
                np.asarray(pooled.edges[1:], dtype=np.float64),
                pooled.perplexity(),
                style[key],
                ppl_band(pooled) if wants_band else None,
                pooled.train_length,
            )
        )
    return drawn


def merge_thin_bins(curve: Curve, least: int = TOKENS_PER_POINT) -> Curve:
    """The curve with neighbouring bins added up until each holds `least` tokens; the training length stays an edge.

    The narrow bins at the start of a window hold few tokens, and what they show is chance. Stored curves, tables and
    MLflow keep every bin; only what is drawn is merged. A rest that stays thin is added to the bin before it.
    """
    per_bin = curve.count.sum(axis=0)
    firsts, tokens = [0], 0
    for index, count in enumerate(per_bin):
        if tokens >= least or (index and curve.edges[index] == curve.train_length):
            firsts.append(index)
            tokens = 0
        tokens += int(count)
    if tokens < least and len(firsts) > 1 and curve.edges[firsts[-1]] != curve.train_length:
        firsts.pop()
    return replace(
        curve,
        edges=np.append(curve.edges[firsts], curve.edges[-1]),
        nll_sum=np.add.reduceat(curve.nll_sum, firsts, axis=1),
        count=np.add.reduceat(curve.count, firsts, axis=1),
    )


def view_limits(drawn: Sequence[Line]) -> tuple[float, float]:
    """Perplexity limits that show all of every line from half its training length on, and a little of its start.

    The first positions of a window have little context and so a perplexity far above the rest.
    """
    shown = np.concatenate([line.ppl_K[line.edges_K >= line.train_length / 2] for line in drawn])
    shown = shown[np.isfinite(shown)]
    if not shown.size:
        return 1.0, 10.0
    low, high = float(shown.min()), float(shown.max())
    return low / 1.04, high * (high / low) ** 0.08 * 1.04


def position_ticks(length: int) -> tuple[list[int], list[str]]:
    """Every second power of two from 16 up to the window length, with names such as 256, 1K, 16K."""
    ticks = [2**power for power in range(4, int(length).bit_length()) if power % 2 == 0]
    return ticks, [f"{tick // 1024}K" if tick >= 1024 else str(tick) for tick in ticks]
