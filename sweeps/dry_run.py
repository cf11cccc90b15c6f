"""What would run: checks that need neither torch nor ray nor mlflow, and the table of the plan."""

import multiprocessing
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.table import Table

from storage.batch_order import WindowOrder
from storage.errors import StorageError
from storage.token_cache import open_token_cache
from storage.tracking_store_check import check_store
from sweeps.folder import choose_folder
from sweeps.plan import SweepPlan, check_resources, machine_cpus
from sweeps.progress import duration
from sweeps.settings import SettingError
from workers.arms import ARMS
from workers.evaluations.windows import evaluation_splits
from workers.settings import TrialConfig


def check_before_start(plan: SweepPlan, out: Path | None, address: str | None, *, fresh: bool = False) -> Path:
    """Check folder, CPUs and tracking store before anything starts; return the sweep's folder."""
    folder = choose_folder(plan, out, fresh=fresh)
    if not (address or os.environ.get("RAY_ADDRESS")):
        check_resources(plan, machine_cpus(), "this machine")
    try:
        check_store(plan.settings.tracking.uri)
    except StorageError as error:
        raise SettingError(str(error)) from error
    return folder


def check_windows(config: TrialConfig, cache_folder: Path) -> int:
    """Build the token cache that the trials share and check that its documents hold the windows asked for.

    Returns the number of training documents that are too short for a window. Raises SettingError.
    """
    try:
        cache = open_token_cache(config.data, cache_folder)
        order = WindowOrder(cache, context=config.trial.context, rows=config.trial.rows, seed=config.trial.seed)
        evaluation_splits(config, cache)
    except StorageError as error:
        raise SettingError(str(error)) from error
    return order.skipped_documents


def check_windows_aside(config: TrialConfig) -> None:
    """`check_windows` for a dry run: in a folder that goes again. Raises SettingError.

    In a process of its own, because the libraries that read text and tables import pandas.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process,
    ):
        process.submit(check_windows, config, Path(folder)).result()


def print_plan(plan: SweepPlan, folder: Path) -> None:
    """The table of trials on stdout, then totals and where the results would go."""
    table = Table(title=f"{plan.sweep.name}: {plan.sweep.question}", title_justify="left")
    for column in ("trial", "seed", "identity", "steps", "tokens", "CPUs", "state per step", "expected"):
        table.add_column(column, justify="left" if column in ("trial", "identity") else "right")
    for trial in plan.trials:
        settings = trial.config.trial
        steps = settings.steps if ARMS[trial.config.arm].trains else 0
        table.add_row(
            trial.label,
            str(settings.seed),
            trial.identity[:8],
            str(steps),
            f"{steps * settings.rows * settings.context:,}",
            str(trial.cpus),
            f"{trial.state_bytes / 2**20:.1f} MiB" if trial.state_bytes else "-",
            duration(trial.expected_seconds),
        )
    Console(width=None if os.isatty(1) else 120).print(table)
    concurrency = plan.concurrency(machine_cpus())
    total = sum(trial.expected_seconds for trial in plan.trials) / concurrency
    print(f"{len(plan.trials)} trials, {concurrency} at once on this machine, expected {duration(total)} in all")
    print(f"results: {folder}; tracking: {plan.settings.tracking.uri}")
