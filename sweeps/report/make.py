"""From the folder of a sweep to its report: tables, figures, exports, and the page that holds it all."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.files import write_json
from sweeps.folder_files import REPORT
from sweeps.report import tables
from sweeps.report.exports import write_exports
from sweeps.report.figures import make_figures
from sweeps.report.page import PAGE, write_page
from sweeps.report.rendering import write_figure
from sweeps.report.results import FailedTrial
from sweeps.report.source import PLAN_OF_REPORT, Sweep, read_sweep
from sweeps.report.terminal_table import rich_table

if TYPE_CHECKING:
    from rich.table import Table

    from sweeps.folder import SweepFolder
    from sweeps.planned import PlannedTrial, SweepPlan


@dataclass(frozen=True)
class Report:
    """Rows of the summary, trials that failed, and the files that hold them."""

    title: str
    rows: list[tables.Row]
    failed: list[FailedTrial]
    files: list[Path]

    @property
    def shown(self) -> list[Path]:
        """Of the files, the figure and the page that a terminal names."""
        return [path for path in self.files if path.name in ("comparison.png", PAGE)]

    def table(self) -> "Table":
        """For the terminal."""
        return rich_table(self.rows, self.title)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return tables.as_plain(self.rows, self.failed)


def make_report(plan: "SweepPlan", folder: "SweepFolder", failed: "Sequence[tuple[PlannedTrial, str]]") -> Report:
    """Write the report of what has finished into the sweep's `report` folder, at the end of a session."""
    from sweeps.folder import plan_as_json

    reported = plan_as_json(plan)
    write_json(folder.root / REPORT / PLAN_OF_REPORT, reported)
    sweep = read_sweep(folder.root, reported, {trial.identity: reason for trial, reason in failed})
    listed = {trial.identity for trial in plan.trials}
    # A search has trials that its plan does not list.
    sweep.failed.extend(
        FailedTrial(trial.arm.label, trial.config.trial.seed, reason, trial.arm.group)
        for trial, reason in failed
        if trial.identity not in listed
    )
    return write_report(sweep)


def write_report(sweep: Sweep) -> Report:
    """Write tables, figures, exports and page of a sweep into its `report` folder."""
    folder = sweep.root / REPORT
    folder.mkdir(parents=True, exist_ok=True)
    rows = tables.summary_rows(sweep.results)
    figures = make_figures(sweep, rows)
    files = tables.write_tables(folder, rows, sweep.failed, tables.seed_remarks(rows, sweep.seeds_of))
    for figure in figures:
        files += write_figure(folder, figure)
    files += write_exports(folder, sweep.results)
    files.append(write_page(folder, sweep, rows, figures))
    return Report(str(sweep.plan["question"]), rows, sweep.failed, files)
