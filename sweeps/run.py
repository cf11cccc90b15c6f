"""The command line: `python -m sweeps.run <sweep>`, or the path of a sweep of one's own, or `--all`.

Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 finished but some trials failed, 130 interrupted.
stdout carries results, stderr carries progress and errors.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sweeps.registry import NAMES, get_sweep
from sweeps.settings import SEARCH, SettingError

if TYPE_CHECKING:
    from sweeps.planned import SweepPlan

READER_GONE = 1
USAGE_ERROR = 2
INTERRUPTED = 130


def parser() -> argparse.ArgumentParser:
    """The flags of `python -m sweeps.run`."""
    flags = argparse.ArgumentParser(
        prog="python -m sweeps.run",
        description="Run a named sweep of initial-state interventions, or continue what its folder holds.",
        epilog="exit codes: 0 done, 1 failed, 2 usage or configuration, 3 some trials failed, 130 interrupted",
    )
    flags.add_argument("sweep", nargs="?", help="name of the sweep, see --list, or path of a file that defines one")
    flags.add_argument("--all", action="store_true", help="run the whole catalogue, or continue it")
    flags.add_argument("--list", action="store_true", help="show the sweeps there are")
    flags.add_argument("--dry-run", action="store_true", help="show what would run, and run nothing")
    flags.add_argument("--json", action="store_true", help="print the list, the plan or the results as JSON")
    flags.add_argument("--preset", default="demo", help="demo (minutes on a laptop, the default) or paper (GPUs)")
    flags.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="GROUP.NAME=VALUE",
        help="change one setting, for example trial.steps=500; may be repeated",
    )
    flags.add_argument("--seeds", type=int, default=1, metavar="N", help="repeat the arms with N seeds")
    flags.add_argument("--out", type=Path, metavar="DIR", help="folder (default runs/<sweep>-<identity>)")
    flags.add_argument("--fresh", action="store_true", help="start anew beside what the folder holds")
    flags.add_argument("--address", metavar="ADDRESS", help="send the sweep to this Ray cluster (or RAY_ADDRESS)")
    search = flags.add_argument_group("for the search, see docs/searches.md")
    search.add_argument("--space", metavar="NAME", help="what is searched: noise, passing or full")
    search.add_argument("--trials", type=int, metavar="N", help="trials of the study (default 20); more continue it")
    search.add_argument("--objective", metavar="NAME", help="far (default), horizon or far_and_near")
    search.add_argument("--store", metavar="URL", help="where the study lies: sqlite:///FILE or journal:FILE")
    return flags


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        code = _main(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever read the output, `head` for one, has gone. Python would try to flush once more as it ends, and say so.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE


def _main(arguments: list[str] | None) -> int:
    flags = parser()
    given = flags.parse_args(arguments)
    try:
        if given.list:
            return _show_list(as_json=given.json)
        if given.all:
            return _run_all(given)
        if given.sweep is None:
            raise SettingError("no sweep is named; write python -m sweeps.run noise_scale, or --list to see all")
        if given.sweep == SEARCH:
            from sweeps.search.command import run_command

            return run_command(given)
        _refuse_flags_of_search(given)
        from sweeps.plan import make_plan

        plan = make_plan(given.sweep, given.preset, given.set, given.seeds, to_show=given.dry_run)
        if given.dry_run:
            return _show_plan(plan, given)
        from sweeps.session import run_sweep

        return run_sweep(plan, out=given.out, fresh=given.fresh, address=given.address, as_json=given.json)
    except SettingError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        print("interrupted before a trial had started; the same command continues", file=sys.stderr)
        return INTERRUPTED


def _refuse_flags_of_search(given: argparse.Namespace) -> None:
    for name in ("space", "trials", "objective", "store"):
        if getattr(given, name) is not None:
            raise SettingError(f"--{name} belongs to the search, and {given.sweep} is none; leave it out")


def _show_list(*, as_json: bool) -> int:
    sweeps = [get_sweep(name) for name in NAMES]
    if as_json:
        print(json.dumps([{"sweep": s.name, "question": s.question, "presets": list(s.presets)} for s in sweeps]))
    else:
        width = max(len(sweep.name) for sweep in sweeps)
        for sweep in sweeps:
            print(f"{sweep.name:<{width}}  {sweep.question}")
    return 0


def _run_all(given: argparse.Namespace) -> int:
    if given.sweep is not None or given.out is not None or given.fresh:
        raise SettingError(
            "--all runs every sweep in its own folder below ./runs; leave out the name of a sweep, --out and --fresh"
        )
    from sweeps.catalogue import run_catalogue

    flags = ["--preset", given.preset, "--seeds", str(given.seeds)]
    flags += [word for assignment in given.set for word in ("--set", assignment)]
    flags += ["--address", given.address] if given.address else []
    flags += [flag for flag, on in (("--dry-run", given.dry_run), ("--json", given.json)) if on]
    return run_catalogue(flags, shown_only=given.dry_run)


def _show_plan(plan: "SweepPlan", given: argparse.Namespace) -> int:
    from sweeps.dry_run import check_before_start, print_plan
    from sweeps.folder import plan_as_json
    from sweeps.windows import check_windows_aside

    folder = check_before_start(plan, given.out, given.address, fresh=given.fresh)
    check_windows_aside([trial.config for trial in plan.trials])
    if given.json:
        print(json.dumps(plan_as_json(plan), indent=2))
    else:
        print_plan(plan, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
