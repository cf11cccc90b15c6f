"""The report of a sweep's folder, finished or not: `python -m sweeps.report FOLDER`.

Exit codes: 0 done, 2 for a folder that is none of a sweep. Reads the folder alone, writes into its `report`.
"""

import argparse
import os
import sys
from pathlib import Path

from sweeps.report.source import ReportError

USAGE_ERROR = 2
_WIDTH = 160


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    flags = argparse.ArgumentParser(
        prog="python -m sweeps.report",
        description="Write tables, figures, exports and a page of what a sweep's folder holds, finished or not.",
        epilog="exit codes: 0 done, 2 no folder of a sweep",
    )
    flags.add_argument("folder", type=Path, help="folder of a sweep, such as runs/noise_scale-0cfc0cc5")
    folder = flags.parse_args(arguments).folder.absolute()
    try:
        _report(folder)
    except ReportError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE_ERROR
    except OSError as error:
        print(f"error: the report of {folder} cannot be written: {error}", file=sys.stderr)
        return USAGE_ERROR
    return 0


def _report(folder: Path) -> None:
    from rich.console import Console

    from sweeps.report.make import write_report
    from sweeps.report.source import read_sweep
    from sweeps.report.tables import failed_line

    report = write_report(read_sweep(folder))
    Console(width=None if os.isatty(1) else _WIDTH).print(report.table())
    for trial in report.failed:
        print(f"failed: {failed_line(trial)}")
    for path in report.shown:
        print(f"figure: {path}")


if __name__ == "__main__":
    sys.exit(main())
