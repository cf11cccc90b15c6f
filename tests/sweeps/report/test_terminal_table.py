import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from sweeps.report.tables import Row, summary_rows
from sweeps.report.terminal_table import rich_table
from tests.sweeps.report.test_tables import result, sweep


def printed(rows: list[Row], width: int) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(rich_table(rows, "a sweep", width))
    return console.export_text()


@pytest.mark.parametrize("width", [80, 140])
def test_the_terminal_table_fits_and_cuts_nothing(width: int) -> None:
    rows = summary_rows(sweep())
    text = printed(rows, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for row in rows:
        assert str(row["arm"]) in text and f"{row['ppl_8k']:.2f}" in text
    assert "random_noise 0.1 *" in text
    assert ("length gen." in text) == (width == 140)


def test_several_groups_are_a_column(tmp_path: Path) -> None:
    results = [
        replace(found, group=size, label=f"{size} {found.label}") for size in ("small", "large") for found in sweep()
    ]
    text = printed(summary_rows(results), 160)
    assert "group" in text and "small" in text
    assert "small zero" not in text, "the group is said once"


@pytest.mark.parametrize("width", [80, 100, 124, 130, 140, 160])
def test_long_names_cut_no_number_at_any_width(width: int) -> None:
    labels = ("base", "zero", "correlated_noise layer", "shuffled_entries", "mixture zero+state_passing")
    rows = summary_rows([result(label, 1.2, rise=0.05 * number) for number, label in enumerate(labels)])
    text = printed(rows, width)
    assert max(map(len, text.splitlines())) <= width and "…" not in text
    assert "zero+state_passing" in text and all(f"{row['ppl_8k']:.2f}" in text for row in rows)


def test_a_question_in_square_brackets_is_text() -> None:
    console = Console(width=160, file=io.StringIO(), record=True)
    console.print(rich_table(summary_rows(sweep()), "Does [bold]it[/nope] matter?", 160))
    assert "Does [bold]it[/nope] matter?" in console.export_text()
