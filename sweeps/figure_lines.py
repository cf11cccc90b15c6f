"""What the figures draw: one line per arm with its colour, dash and band. No plotting library at import.

Colours are safe for colour-blind readers: black, grey and the Okabe-Ito palette for named arms, the sequential map
viridis (dark = small value) without its palest end for a swept value, so the order of the values shows. Related arms
share a colour and differ in their dashes: independent noise is blue, correlated noise green, passed states vermilion.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np

from storage.curves import Curve
from sweeps.statistics import Floats, pool, ppl_band
from sweeps.tables import ArmResult, best_label, by_label

Dash = Literal["solid", "dash", "dot", "dashdot", "longdash"]

_NAMED: dict[str, tuple[str, Dash, float]] = {
    "base": ("#000000", "solid", 2.6),
    "zero": ("#7f7f7f", "dash", 2.6),
    "longer_context": ("#56B4E9", "dashdot", 2.6),
    "random_noise": ("#0072B2", "dash", 2.2),
    "fitted_noise": ("#0072B2", "solid", 2.2),
    "correlated_noise head": ("#009E73", "dot", 2.2),
    "correlated_noise layer": ("#009E73", "dash", 2.2),
    "correlated_noise all": ("#009E73", "solid", 2.2),
    "state_passing": ("#D55E00", "solid", 3.2),
    "shuffled_entries": ("#D55E00", "dot", 2.2),
    "mixture": ("#D55E00", "dashdot", 2.2),
    "tbtt": ("#CC79A7", "solid", 2.6),
    "reservoir": ("#E69F00", "solid", 2.6),
}
"""By label, or by arm for all its labels."""
_OTHERS = ("#F0E442", "#CC79A7", "#E69F00", "#0072B2", "#009E73", "#56B4E9")
_OTHER_DASHES: tuple[Dash, ...] = ("longdash", "dot", "dashdot")
_BANDED_ARMS = ("base", "state_passing")
TOKENS_PER_POINT = 512
"""A drawn point rests on at least so many tokens, over all windows."""


@dataclass(frozen=True)
class Style:
    """How an arm is drawn, in the same way in every figure."""

    color: str
    """`#rrggbb`."""
    dash: Dash
    width: float
    """In points."""


@dataclass(frozen=True)
class Line:
    """One arm's perplexity against position, seeds pooled."""

    label: str
    arm: str
    edges_K: Floats
    """Right bin edges: the position up to which (inclusive) a bin reaches."""
    ppl_K: Floats
    style: Style
    band: tuple[Floats, Floats] | None
    """95 % bounds over documents, where asked for."""


class Labelled(Protocol):
    """What a style is chosen by; an `ArmResult` is one, a planned trial may be another."""

    @property
    def label(self) -> str: ...
    @property
    def arm(self) -> str: ...
    @property
    def value(self) -> float | None: ...


def styles(arms: Iterable[Labelled]) -> dict[str, Style]:
    """A style per label: named arms have their own, swept values run along the colour map in order of value."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    first = {entry.label: entry for entry in reversed(list(arms))}
    swept = [label for _, label in sorted((e.value, label) for label, e in first.items() if e.value is not None)]
    others = iter([(color, dash, 2.2) for dash in _OTHER_DASHES for color in _OTHERS] * len(first))
    found: dict[str, Style] = {}
    for label, entry in first.items():
        if entry.value is not None:
            shade = 0.05 + 0.83 * swept.index(label) / max(len(swept) - 1, 1)
            found[label] = Style(to_hex(colormaps["viridis"](shade)), "solid", 1.8)
        else:
            named = _NAMED.get(label) or _NAMED.get(entry.arm)
            style = Style(*named) if named else None
            # A second label of one arm, such as another length of `longer_context`, must not look like the first.
            found[label] = style if style and style not in found.values() else Style(*next(others))
    return found


def lines(results: Sequence[ArmResult], bands: bool = True) -> list[Line]:
    """A line per label in the order of appearance; bands for the base, the best swept value and state passing."""
    style = styles(results)
    banded = {best_label(results)} if bands else set()
    drawn = []
    for label, group in by_label(results).items():
        # Seeds see the same windows: several of them add no text, and every line is to have the same points.
        pooled = merge_thin_bins(pool([result.report for result in group]), TOKENS_PER_POINT * len(group))
        wants_band = bands and (label in banded or group[0].arm in _BANDED_ARMS)
        edges_K = np.asarray(pooled.edges[1:], dtype=np.float64)
        drawn.append(
            Line(
                label,
                group[0].arm,
                edges_K,
                pooled.perplexity(),
                style[label],
                ppl_band(pooled) if wants_band else None,
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


def view_limits(drawn: Sequence[Line], train_length: int) -> tuple[float, float]:
    """Perplexity limits that show all of every line from half the training length on, and a little of its start.

    The first positions of a window have little context and so a perplexity far above the rest.
    """
    shown = np.concatenate([line.ppl_K[line.edges_K >= train_length / 2] for line in drawn])
    shown = shown[np.isfinite(shown)]
    if not shown.size:
        return 1.0, 10.0
    low, high = float(shown.min()), float(shown.max())
    return low / 1.04, high * (high / low) ** 0.08 * 1.04


def position_ticks(length: int) -> tuple[list[int], list[str]]:
    """Every second power of two from 16 up to the window length, with names such as 256, 1K, 16K."""
    ticks = [2**power for power in range(4, int(length).bit_length()) if power % 2 == 0]
    return ticks, [f"{tick // 1024}K" if tick >= 1024 else str(tick) for tick in ticks]


def shared_axis(results: Sequence[ArmResult]) -> Curve:
    """The curve whose unit, training length and window length label the axes (they are the same for every arm)."""
    if not results:
        raise ValueError("no finished trial to draw")
    return results[0].report
