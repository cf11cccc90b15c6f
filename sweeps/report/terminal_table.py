"""The summary of a sweep for a terminal, whole or compact. `rich` is imported when a table is made."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sweeps.report.tables import HORIZON_NOTE, Row, all_cells, notes

if TYPE_CHECKING:
    from rich.table import Table

_WIDE_ONLY = ("seeds", "bits/byte", "length gen.")
SHORT_LABEL = 18
"""Letters of an arm's label that a compact table shows on one line."""


def rich_table(rows: Sequence[Row], title: str | None = None, width: int | None = None) -> "Table":
    """The summary for a terminal of `width` columns; the best swept value in bold.

    Where the whole table does not fit it is compact: intervals on a second line, only what the sweep is about. `None`:
    as this terminal allows, the whole table where the output is no terminal.
    """
    from rich import get_console

    console = get_console()
    whole = _rich_table(rows, title, compact=False)
    offered = width or (console.width if console.is_terminal else None)
    needed = console.measure(whole, options=console.options.update(max_width=1_000)).maximum
    return whole if offered is None or needed <= offered else _rich_table(rows, title, compact=True)


def _rich_table(rows: Sequence[Row], title: str | None, *, compact: bool) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    caption = "\n".join(note for note in notes(rows) if note != HORIZON_NOTE) or None
    # A text of its own: a question in square brackets would be taken for markup.
    heading_text = Text(title) if title else None
    table = Table(
        title=heading_text, caption=caption, caption_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    shown = [_chosen(row, compact=compact) for row in all_cells(rows)]
    for heading in shown[0] if shown else ():
        left = heading in ("group", "arm", "length gen.")
        table.add_column(
            heading.replace("@", "\n@") if compact else heading, justify="left" if left else "right", no_wrap=True
        )
    for row, cells in zip(rows, shown, strict=True):
        fitted = [Text(_on_two_lines(text) if compact else text) for text in cells.values()]
        table.add_row(*fitted, style="bold" if row["best"] else None)
    return table


def _chosen(texts: dict[str, str], *, compact: bool) -> dict[str, str]:
    """What a terminal has room for: not the horizon with its interval, and in a compact table less."""
    left_out = (*_WIDE_ONLY, "horizon") if compact else ("horizon",)
    return {key: text for key, text in texts.items() if key not in left_out}


def _on_two_lines(text: str) -> str:
    """An interval below its estimate, the setting in a long label below its arm."""
    if " [" not in text and len(text) > SHORT_LABEL:
        return text.replace(" ", "\n", 1)
    return text.replace(" [", "\n[")
