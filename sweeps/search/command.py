"""`python -m sweeps.run search`: from the flags to a plan that is shown, or run."""

import argparse
import json
import os
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sweeps.dry_run import check_before_start
from sweeps.folder import plan_as_json
from sweeps.gpu_hours import gpu_hours, price, speeds
from sweeps.machine import this_machine
from sweeps.progress import duration
from sweeps.resources import bank_needs, size
from sweeps.search.plan import TRIALS, SearchPlan, check_store_of, make_search_plan
from sweeps.settings import SettingError
from sweeps.windows import check_windows_aside

_SHOWN = ("trial.steps", "trial.rows", "trial.context", "trial.seed", "eval.every", "eval.length")


def run_command(given: argparse.Namespace) -> int:
    """Show the search that the flags name, or run it; the exit code. Raises SettingError."""
    if given.seeds != 1:
        raise SettingError("a search has one seed, trial.seed, for all its trials; leave --seeds out")
    count = TRIALS if given.trials is None else given.trials
    plan = make_search_plan(
        given.space, given.objective or "far", count, given.preset, given.set, to_show=given.dry_run
    )
    if not given.dry_run:
        from sweeps.search.driver import run_search

        return run_search(
            plan, out=given.out, fresh=given.fresh, address=given.address, as_json=given.json, store=given.store
        )
    check_store_of(plan, given.store)
    folder = check_before_start(plan, given.out, given.address, fresh=given.fresh)
    check_windows_aside([trial.config for trial in plan.possible])
    if given.json:
        print(json.dumps({**plan_as_json(plan), **plan.as_json()}, indent=2))
    else:
        _print_plan(plan, folder)
    return 0


def _print_plan(plan: SearchPlan, folder: Path) -> None:
    """Space, settings, trials, time and bytes on stdout."""
    machine = this_machine()
    Console(width=None if os.isatty(1) else 120).print(_space_table(plan))
    print(f"objective: {plan.objective.meaning}; on the select split")
    print(f"settings: {', '.join(f'{name}={_value(plan, name)}' for name in _SHOWN)}")
    print(f"early stops: {_stops(plan)}")
    needs = bank_needs(plan, machine)
    print(f"state banks, {needs.at_once} at once: at most {size(needs.memory)}")
    print(f"{len(plan.trials)} references ({', '.join(trial.label for trial in plan.trials)}) and {plan.count} trials")
    print(_expected(plan, needs.at_once))
    print(f"results: {folder}; tracking: {plan.settings.tracking.uri}")
    for phrase in plan.fetches:
        print(f"a run fetches first, from the hub: {phrase}")


def _space_table(plan: SearchPlan) -> Table:
    table = Table(title=f"search: the space {plan.space.name}", title_justify="left")
    for column in ("setting", "range", "arms"):
        table.add_column(column)
    if len(plan.space.arms) > 1:
        table.add_row("arm", ", ".join(plan.space.arms), "")
    for one in plan.space.parameters:
        table.add_row(one.setting, one.range, ", ".join(one.arms) or "all")
    return table


def _value(plan: SearchPlan, name: str) -> object:
    group, _, field = name.partition(".")
    return getattr(getattr(plan.settings, group), field)


def _stops(plan: SearchPlan) -> str:
    every, steps, reduction = plan.settings.eval.every, plan.settings.trial.steps, plan.settings.search.reduction
    if not plan.stops_early:
        return "none"
    rungs = [every]
    while rungs[-1] * reduction < steps:
        rungs.append(rungs[-1] * reduction)
    return f"after steps {', '.join(map(str, rungs))} of {steps} about one trial in {reduction} goes on"


def _expected(plan: SearchPlan, at_once: int) -> str:
    if plan.needs_gpus:
        gpu = plan.settings.gpu
        hours = sum(gpu_hours(one.config, gpu) for one in plan.samples) / len(plan.samples) * plan.count
        assumed = speeds([one.config for one in plan.samples], gpu)
        return f"on GPUs: {hours:.3g} GPU-hours at most {price(hours, gpu)}, {assumed}"
    seconds = sum(one.expected_seconds for one in plan.trials) + plan.count * plan.expected_seconds
    return f"{at_once} at once on this machine, expected {duration(seconds / at_once)} without an early stop"
