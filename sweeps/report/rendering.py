"""Figures as files (PNG, SVG) and as inline SVG of a page. Matplotlib is imported when something is drawn.

No pyplot: it would hold global state and look for a display. Texts stay texts in the page, outlines in files.
"""

import io
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.files import write_bytes
from sweeps.report.figure_lines import Style
from sweeps.report.figure_spec import FigureSpec, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FILE_INCHES, FILE_DPI = (16.0, 10.0), 100
PAGE_INCHES = (8.6, 6.4)
"""One panel in the page. With text of 17 points it can be read at the width of a phone and is not coarse on a desk."""
_MOST_PANELS_IN_VIEW = 6
_LOOK: dict[Any, Any] = {
    "font.size": 17,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "legend.fontsize": 16,
    "axes.titlelocation": "left",
    "axes.titlesize": 17,
    # A dollar sign in a name is no formula.
    "text.parse_math": False,
    # The same figure gives the same file.
    "svg.hashsalt": "initial-state-sweeps",
}
DASHES: dict[str, Any] = {
    "solid": "-",
    "dash": (0, (5, 2)),
    "dot": (0, (1, 1.5)),
    "dashdot": (0, (5, 1.5, 1, 1.5)),
    "longdash": (0, (9, 2)),
}


def line_look(style: Style) -> dict[str, Any]:
    """The style as keyword arguments of `axes.plot`."""
    return {
        "color": style.color,
        "linewidth": style.width,
        "linestyle": DASHES[style.dash],
        "marker": style.marker or None,
        "markersize": 8,
        "markeredgecolor": "white",
        "markeredgewidth": 0.6,
    }


def write_figure(folder: Path, spec: FigureSpec) -> list[Path]:
    """Write `<name>.png` and `<name>.svg`; return their paths."""
    paths = [folder / f"{spec.name}.{ending}" for ending in ("png", "svg")]
    columns = min(spec.columns, len(spec.panels))
    rows = math.ceil(len(spec.panels) / columns)
    height = FILE_INCHES[1] * max(1.0, rows * columns / _MOST_PANELS_IN_VIEW, max(p.height for p in spec.panels))
    with _figure((FILE_INCHES[0], height)) as figure:
        grid = figure.subplots(rows, columns, squeeze=False, sharey=spec.share_y).flatten()
        for axes, panel in zip(grid, spec.panels, strict=False):
            panel.draw(axes)
            if len(spec.panels) > 1:
                axes.set_title(panel.heading)
        for unused in grid[len(spec.panels) :]:
            unused.set_visible(False)
        _label_outer(list(grid[: len(spec.panels)]), columns)
        figure.suptitle(spec.title, x=0.01, ha="left", fontweight="bold")
        figure.supxlabel("; ".join((spec.basis, *spec.remarks)), x=0.01, ha="left", fontsize=14, color="#333333")
        _file_legend(figure, spec)
        for path in paths:
            _save(figure, path)
            # Laid out once; the next file is the same figure.
            figure.set_layout_engine("none")
    return paths


def _label_outer(grid: "list[Axes]", columns: int) -> None:
    """Names of the axes at the edges only, where every panel has the same."""
    if len({axes.get_ylabel() for axes in grid}) == 1:
        for index, axes in enumerate(grid):
            if index % columns:
                axes.set_ylabel("")


def _save(figure: "Figure", path: Path) -> None:
    buffer = io.BytesIO()
    without_date: dict[str, Any] = {"metadata": {"Date": None}} if path.suffix == ".svg" else {}
    figure.savefig(buffer, format=path.suffix[1:], **without_date)
    write_bytes(path, buffer.getvalue())


@contextmanager
def _figure(inches: tuple[float, float], **look: Any) -> "Iterator[Figure]":
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {**_LOOK, **look}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=inches, dpi=FILE_DPI, layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def _file_legend(figure: "Figure", spec: FigureSpec) -> None:
    from matplotlib.lines import Line2D

    if not spec.legend:
        return
    handles = [Line2D([], [], label=label, **line_look(style)) for label, style in spec.legend]
    figure.legend(handles=handles, loc="outside right upper")


def inline_svg(panel: Panel, identity: str, heading: str) -> str:
    """One panel as an `<svg>` element for a page: named and described, scaling, with ids of its own."""
    buffer = io.StringIO()
    with _figure((PAGE_INCHES[0], PAGE_INCHES[1] * panel.height), **{"svg.fonttype": "none"}) as figure:
        axes = figure.subplots()
        panel.draw(axes)
        if panel.heading:
            axes.set_title(panel.heading)
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    body = text[text.index("<svg") :]
    opening, _, content = body.partition(">")
    content = re.sub(r"<metadata>.*?</metadata>", "", content, flags=re.DOTALL)
    content = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{identity}-", content)
    size = re.search(r'viewBox="[^"]*"', opening)
    assert size is not None, "matplotlib wrote a picture without its size"
    # A picture that is described as a whole: its hundreds of parts are not read out.
    names = (
        f'<title id="{identity}-title">{escape(heading)}</title><desc id="{identity}-desc">{escape(panel.says)}</desc>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {size.group()} role="img" '
        f'aria-labelledby="{identity}-title {identity}-desc">{names}{content}'
    ).rstrip()
