"""From the folders of finished trials to the summary table and the figures."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeps import tables
from sweeps.figures import write_figures
from sweeps.folder import SweepFolder
from sweeps.plan import PlannedTrial, SweepPlan
from sweeps.tables import ArmResult, FailedTrial
from sweeps.terminal_table import rich_table

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Report:
    """Rows of the summary, trials that failed, and the files that hold them."""

    title: str
    rows: list[tables.Row]
    failed: list[FailedTrial]
    files: list[Path]

    def table(self) -> "Table":
        """For the terminal."""
        return rich_table(self.rows, self.title)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return tables.as_plain(self.rows, self.failed)


def arm_result(trial: PlannedTrial, folder: SweepFolder) -> ArmResult | None:
    """What the table needs of a finished trial; None when it has not finished."""
    result = folder.result(trial)
    if result is None:
        return None
    curves = folder.curves(trial, result)
    return ArmResult(
        label=trial.arm.label,
        arm=trial.arm.arm,
        seed=trial.config.trial.seed,
        value=trial.arm.value,
        select=curves["select"],
        report=curves["report"],
        apart=curves.get("apart"),
        seconds=sum(result["seconds"].values()),
    )


def make_report(plan: SweepPlan, folder: SweepFolder, failed: list[tuple[PlannedTrial, str]]) -> Report:
    """Write tables and figures of what has finished into the sweep's `report` folder."""
    found = [arm_result(trial, folder) for trial in plan.trials]
    results = [result for result in found if result is not None]
    lost = [FailedTrial(trial.arm.label, trial.config.trial.seed, reason) for trial, reason in failed]
    rows = tables.summary_rows(results)
    folder.report.mkdir(parents=True, exist_ok=True)
    files = tables.write_tables(folder.report, rows, lost)
    if results:
        files += write_figures(folder.report, results, plan.sweep.name)
    return Report(plan.sweep.question, rows, lost, files)
