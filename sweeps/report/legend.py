"""The legend of a figure as HTML: it wraps where the screen is narrow, which no picture does."""

from collections.abc import Sequence

from sweeps.report.figure_lines import Style
from sweeps.report.markup import Markup, element

_DASHES = {"solid": "", "dash": "10 4", "dot": "2 3", "dashdot": "10 3 2 3", "longdash": "18 4"}
_SHAPES = {
    "o": "M18 3.5a4.5 4.5 0 1 0 .01 0z",
    "s": "M14 4h8v8h-8z",
    "^": "M18 3l5 9.5h-10z",
    "v": "M18 13l5 -9.5h-10z",
    "D": "M18 2.5l5.5 5.5l-5.5 5.5l-5.5 -5.5z",
    "P": "M16.2 3h3.6v3.2h3.2v3.6h-3.2v3.2h-3.6v-3.2h-3.2v-3.6h3.2z",
    "X": "M14.5 3l3.5 3.2l3.5 -3.2l1.8 1.8l-3.3 3.2l3.3 3.2l-1.8 1.8l-3.5 -3.2l-3.5 3.2l-1.8 -1.8l3.3 -3.2l-3.3 -3.2z",
    "<": "M13 8l9.5 -5v10z",
    ">": "M23 8l-9.5 -5v10z",
}
"""Outlines of matplotlib's markers around the middle of a swatch of 36 x 16."""


def legend(entries: Sequence[tuple[str, Style]]) -> Markup:
    """A list of swatches and names; empty for no entries."""
    if not entries:
        return Markup()
    return element("ul", *(element("li", _swatch(style), label) for label, style in entries), class_="legend")


def _swatch(style: Style) -> Markup:
    line = element(
        "path",
        d="M1 8h34",
        stroke=style.color,
        stroke_width=f"{style.width}",
        stroke_dasharray=_DASHES[style.dash] or "none",
    )
    marker = element("path", d=_SHAPES[style.marker], fill=style.color) if style.marker else Markup()
    return element("svg", line, marker, viewBox="0 0 36 16", width="36", height="16", aria_hidden="true")
