"""The paper's curves beside ours: read off its figures, shipped in `sweeps/paper_curves`, used by the preset `paper`.

A curve is drawn where model size, arm and number of steps are those of the figure. Figs. 1b and 5 start from the same
checkpoint but differ by some 3 % on it: the base is taken from the figure with the sweep's number of steps.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sweeps.report.results import ArmResult, by_row

FOLDER = Path(__file__).parents[1] / "paper_curves"
PAPER = "arXiv:2507.02782"
_BEYOND_THE_PLOT = "above"


@dataclass(frozen=True)
class PaperCurve:
    """A line of one of the paper's figures, for one of our rows."""

    group: str
    label: str
    """Within its group."""
    position: tuple[float, ...]
    level: tuple[float, ...]
    """Perplexity, or what the figure shows."""
    source: str
    """For the reader: paper and figure."""


@dataclass(frozen=True)
class _Figure:
    file: str
    name: str
    steps: int | None
    """Post-training steps of its arms; None: the paper does not say."""
    column: str
    position: str = "position"
    models: tuple[str, ...] = ()
    """For a file without a column `model`: of what it may be taken to be."""


_PERPLEXITY = (
    _Figure("fig5_interventions_100_steps.csv", "Fig. 5", 100, "ppl"),
    _Figure("fig1b_mamba2_state_passing.csv", "Fig. 1b", 500, "ppl"),
)
_REMEMBRANCE = (_Figure("fig1e_effective_remembrance.csv", "Fig. 1e", 500, "total_variation", position="t"),)
_STATE_STD = (_Figure("fig4_state_std.csv", "Fig. 4 (size not stated)", None, "std", models=("mamba2-130m",)),)
BY_COLUMN = {"ppl": _PERPLEXITY, "total_variation": _REMEMBRANCE, "std": _STATE_STD}
"""The figures that show a quantity."""


def paper_curves(results: Sequence[ArmResult], preset: str, column: str) -> list[PaperCurve]:
    """The paper's curves of this quantity for the rows of a sweep; none but in the preset `paper`."""
    if preset != "paper":
        return []
    found = [_curve_of(row[0], column) for row in by_row(results).values()]
    return [curve for curve in found if curve is not None]


def _curve_of(result: ArmResult, column: str) -> PaperCurve | None:
    model = f"{result.config['model']['architecture']}-{result.config['model']['size']}"
    steps = result.config["trial"]["steps"]
    figures = [figure for figure in BY_COLUMN[column] if figure.steps in (steps, None) or result.arm == "base"]
    # Of the base, the figure with the sweep's own number of steps first.
    for figure in sorted(figures, key=lambda figure: figure.steps != steps):
        position, level = _read(figure, model, result.arm)
        if position:
            return PaperCurve(result.group, result.short, position, level, f"{PAPER}, {figure.name}")
    return None


def _read(figure: _Figure, model: str, arm: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Positions and levels of this model and arm, as far as the curve stays within the figure."""
    names = {arm, f"{arm}_{figure.steps}"}
    rows = [
        row
        for row in _rows(figure.file)
        if row["arm"] in names
        and (row["model"] == model if "model" in row else model in figure.models)
        and row.get("reading") != _BEYOND_THE_PLOT
    ]
    points = sorted((float(row[figure.position]), float(row[figure.column])) for row in rows)
    return tuple(position for position, _ in points), tuple(level for _, level in points)


@cache
def _rows(file: str) -> tuple[dict[str, str], ...]:
    with (FOLDER / file).open(newline="") as opened:
        return tuple(csv.DictReader(opened))
