"""What would run: checks that need neither torch nor ray nor mlflow, and the table of the plan."""

import os
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from storage.errors import StorageError
from storage.tracking_store_check import check_store
from sweeps.continuation import check_continuation
from sweeps.folder import choose_folder
from sweeps.gpu_hours import gpu_hours, gpu_line, training_tokens
from sweeps.gpu_memory import check_gpu_memory, gpu_memory
from sweeps.kernel_check import check_kernels, lacking_kernels
from sweeps.machine import Machine, this_machine
from sweeps.planned import PlannedTrial, SweepPlan
from sweeps.progress import duration
from sweeps.resources import bank_needs, check_resources, size
from sweeps.settings import SettingError
from workers.arms import ARMS

GIB = 2**30


def check_before_start(plan: SweepPlan, out: Path | None, address: str | None, *, fresh: bool = False) -> Path:
    """Check folder, checkpoints, CPUs, memory, GPUs' too, kernels and tracking store before anything starts.

    Returns the sweep's folder.
    """
    folder = choose_folder(plan, out, fresh=fresh)
    check_continuation(plan, folder)
    if plan.needs_gpus:
        check_gpu_memory(plan)
    elif not (address or os.environ.get("RAY_ADDRESS")):
        machine = this_machine()
        check_resources(plan, machine)
        check_kernels(plan, machine)
    try:
        check_store(plan.settings.tracking.uri)
    except StorageError as error:
        raise SettingError(str(error)) from error
    return folder


def print_plan(plan: SweepPlan, folder: Path) -> None:
    """The trials and their state banks as tables on stdout, then totals and where the results would go."""
    machine = this_machine()
    console = Console(width=None if os.isatty(1) else 120)
    console.print(_trial_table(plan))
    if any(trial.bank for trial in plan.trials):
        console.print(_bank_table(plan))
        print(_bank_total(plan, machine))
    if plan.needs_gpus:
        console.print(_gpu_table(plan))
    print(_totals(plan, machine))
    print(gpu_line([trial.config for trial in plan.trials], plan.settings.gpu))
    if machine.gpus and (lacking := lacking_kernels(plan, machine)):
        print(f"not on this machine: {lacking}")
    print(f"results: {folder}; tracking: {plan.settings.tracking.uri}")
    for phrase in plan.fetches:
        print(f"a run fetches first, from the hub: {phrase}")


def _totals(plan: SweepPlan, machine: Machine) -> str:
    tokens = (
        f"{len(plan.trials)} trials, {sum(map(training_tokens, (one.config for one in plan.trials))):,} training tokens"
    )
    if plan.needs_gpus and not machine.gpus:
        return f"{tokens}; trial.device is cuda and this machine has no GPU: send it to a cluster with --address"
    concurrency = plan.concurrency(machine.cpus, machine.gpus)
    total = sum(trial.expected_seconds for trial in plan.trials) / concurrency
    return f"{tokens}, {concurrency} at once on this machine, expected {duration(total)} in all"


def _trial_table(plan: SweepPlan) -> Table:
    costs = ("GPUs", "GPU-hours", "USD") if plan.needs_gpus else ("CPUs", "expected")
    # Texts of their own: what a sweep of one's own says in square brackets would be taken for markup.
    table = Table(title=Text(f"{plan.sweep.name}: {plan.sweep.question}"), title_justify="left")
    for column in ("trial", "seed", "identity", "steps", "rows", "window", "tokens", "state", *costs):
        table.add_column(column, justify="left" if column in ("trial", "identity") else "right")
    for trial in plan.trials:
        config = trial.config
        steps = config.trial.steps if ARMS[config.arm].trains else 0
        table.add_row(
            Text(trial.label),
            str(config.trial.seed),
            trial.identity[:8],
            str(steps),
            str(config.batch_rows) if steps else "-",
            str(config.window) if steps else "-",
            f"{training_tokens(config):,}",
            size(trial.dims.state_bytes()),
            *_costs(plan, trial),
        )
    return table


def _costs(plan: SweepPlan, trial: PlannedTrial) -> tuple[str, ...]:
    """How many GPUs a trial keeps busy, for how many hours of all together and for what price; or CPUs and time."""
    if not plan.needs_gpus:
        return str(trial.cpus), duration(trial.expected_seconds)
    hours = gpu_hours(trial.config, plan.settings.gpu)
    return str(trial.config.trial.workers), f"{hours:.2g}", f"{hours * plan.settings.gpu.usd_per_hour:.2g}"


def _bank_table(plan: SweepPlan) -> Table:
    """A row per arm with a state bank: what it moves and holds at most."""
    table = Table(title="state banks: bytes at most", title_justify="left")
    for column in ("arm", "mode", "shards", "a row", "a step", "a shard", "a worker", "a trial"):
        table.add_column(column, justify="left" if column in ("arm", "mode") else "right")
    for label, bank in {trial.arm.label: trial.bank for trial in plan.trials}.items():
        if bank is not None:
            sizes = (bank.row_bytes, bank.step_bytes, bank.shard_bytes, bank.worker_bytes, bank.held_bytes)
            table.add_row(
                Text(label), bank.mode, str(bank.shards), *(size(number) if number else "-" for number in sizes)
            )
    return table


def _gpu_table(plan: SweepPlan) -> Table:
    """A row per kind of trial: what each of its GPUs holds, piece by piece."""
    gpu = plan.settings.gpu
    usable = gpu.usable_bytes / GIB
    title = (
        f"memory of each GPU in GiB, at most; {usable:.1f} of the {gpu.memory_gib:g} GiB of one {gpu.name} are for it"
    )
    table = Table(title=title, title_justify="left")
    rows: dict[tuple[tuple[str, int], ...], PlannedTrial] = {}
    for trial in plan.trials:
        # One row for trials that need the same: other seeds, other values of sigma.
        rows.setdefault(tuple(gpu_memory(trial.config).as_json().items()), trial)
    for column in ("trial", "at once", *(name for name, _ in next(iter(rows)))):
        table.add_column(column, justify="left" if column == "trial" else "right")
    for needs, trial in rows.items():
        at_once = f"{trial.config.micro_rows} x {trial.config.window}" if ARMS[trial.config.arm].trains else "-"
        table.add_row(Text(trial.label), at_once, *(f"{number / GIB:.2f}" if number else "-" for _, number in needs))
    return table


def _bank_total(plan: SweepPlan, machine: Machine) -> str:
    needs = bank_needs(plan, machine)
    return (
        f"state banks, {needs.at_once} at once: at most {size(needs.memory)}; this machine has "
        f"{size(machine.memory)} of memory to spare"
    )
