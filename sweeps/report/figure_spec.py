"""What a figure is before anything draws it: panels, a legend, a sentence on what it shows and what it rests on.

The same figure goes to PNG and SVG with its panels side by side, and into the page with one picture per panel, so that
a narrow screen may put them below one another.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sweeps.report.figure_lines import Style
from sweeps.report.results import ArmResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    heading: str
    """Above the panel, where there are several."""
    draw: "Callable[[Axes], None]"
    says: str
    """What it shows, for those who cannot see it."""
    height: float = 1.0
    """Relative to the usual height of a panel."""


@dataclass(frozen=True)
class FigureSpec:
    """One figure of the report."""

    name: str
    """Of its files, without the ending."""
    title: str
    explanation: str
    """What it shows and how to read it, in a sentence or two."""
    basis: str
    """Windows, documents and seeds it rests on."""
    panels: tuple[Panel, ...]
    legend: tuple[tuple[str, Style], ...] = ()
    remarks: tuple[str, ...] = ()
    """Below the legend: what shading and dots stand for."""
    share_y: bool = True
    columns: int = 3
    """Most panels side by side."""


def basis_of(results: Sequence[ArmResult], seeds_of: str) -> str:
    """`16 windows of 8 documents, 16384 bytes each; 3 seeds (trial.seed)`."""
    curves = [result.report for result in results]
    windows, lengths = {len(curve.document_ids) for curve in curves}, {(curve.length, curve.unit) for curve in curves}
    documents = {len(set(curve.document_ids)) for curve in curves}
    each = " or ".join(f"{length} {unit}" for length, unit in sorted(lengths))
    text = f"{counted(windows, 'window')} of {counted(documents, 'document')}, {each} each"
    return f"{text}; {seeds_text(results, seeds_of)}"


def seeds_text(results: Sequence[ArmResult], seeds_of: str) -> str:
    """`3 seeds (trial.seed)`: of the rows that train."""
    seeds = {
        len({one.seed for one in results if one.key == key}) for key in {r.key for r in results if r.arm != "base"}
    }
    return f"{counted(seeds or {1}, 'seed')} ({seeds_of})"


def counted(numbers: set[int], name: str) -> str:
    """`one window`, `16 windows`, `1 to 3 seeds`."""
    low, high = min(numbers), max(numbers)
    words = "one" if high == 1 else str(high) if low == high else f"{low} to {high}"
    return f"{words} {name}{'' if high == 1 else 's'}"
