"""Which figures a sweep's report has."""

from collections.abc import Sequence

from sweeps.report.by_value import value_figure
from sweeps.report.comparison import comparison_figure
from sweeps.report.diagnostics import diagnostic_figures
from sweeps.report.differences import difference_figure
from sweeps.report.figure_spec import FigureSpec
from sweeps.report.heads import head_figure
from sweeps.report.paper import paper_curves
from sweeps.report.source import Sweep
from sweeps.report.tables import Row


def make_figures(sweep: Sweep, rows: Sequence[Row]) -> list[FigureSpec]:
    """The figures of what has finished; none where nothing has."""
    results, preset = sweep.results, str(sweep.plan["preset"])
    if not results:
        return []
    found = [
        comparison_figure(results, sweep.name, sweep.seeds_of, paper_curves(results, preset, "ppl")),
        value_figure(results, sweep.name, str(sweep.about.get("varies", "value")), sweep.seeds_of),
        difference_figure(results, rows, sweep.name, sweep.seeds_of),
        *diagnostic_figures(results, preset, sweep.seeds_of),
        head_figure(results, sweep.seeds_of),
    ]
    return [figure for figure in found if figure is not None]
