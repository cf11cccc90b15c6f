"""Take the figure and the table of a finished sweep into its page below docs/sweeps/.

    python docs/take_report.py runs/steps-0123abcd docs/sweeps/steps.md

Replaces what stands between the two marks of the page (or appends them to a new page): question, what the paper found,
what would contradict it, the command, when and on what it ran, the figures and the table. What is written around the
marks, such as what the sweep shows and fails to show, stays. The figures go to docs/images/sweeps/.
"""

import argparse
import json
import os
import platform
import shutil
import sys
import time
from pathlib import Path

from sweeps.report.source import ReportError, Sweep, read_sweep

BEGIN, END = "<!-- taken from a run by docs/take_report.py -->", "<!-- end of what was taken -->"
FIGURES = ("comparison", "scale")
IMAGES = Path(__file__).parent / "images" / "sweeps"


def take(folder: Path, page: Path) -> None:
    """Write the block of `page` from the sweep in `folder`. Raises ReportError for a folder without a report."""
    sweep = read_sweep(folder)
    report = folder / "report"
    if not (report / "summary.md").is_file():
        raise ReportError(f"{folder} holds no report; run python -m sweeps.report {folder} first")
    images = _take_figures(report, page.stem)
    text = page.read_text() if page.is_file() else f"# `{page.stem}`\n\n{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n\n{_block(sweep, report, images)}\n{END}{after}")


def _take_figures(report: Path, name: str) -> list[str]:
    IMAGES.mkdir(parents=True, exist_ok=True)
    taken = []
    for figure in FIGURES:
        if (report / f"{figure}.svg").is_file():
            target = IMAGES / (f"{name}.svg" if figure == FIGURES[0] else f"{name}_{figure}.svg")
            shutil.copyfile(report / f"{figure}.svg", target)
            taken.append(f"../images/sweeps/{target.name}")
    return taken


def _block(sweep: Sweep, report: Path, images: list[str]) -> str:
    about = sweep.about
    figure = f" ({about['figure']})" if about["figure"] else ""
    lines = [
        f"*{sweep.plan['question']}* {about['why']}",
        f"What the paper found{figure}: {about['paper_found']}",
        f"What would contradict it: {about['contradicts']}",
        f"    {sweep.plan['command']}",
        _circumstances(sweep),
        *(f"![{sweep.plan['question']}]({image})" for image in images),
        (report / "summary.md").read_text().rstrip(),
    ]
    return "\n\n".join(lines) + "\n"


def _circumstances(sweep: Sweep) -> str:
    """When it ran, on what, and how many of its trials came to their end."""
    results = list(sweep.root.glob("trials/*/result.json"))
    day = time.strftime("%Y-%m-%d", time.localtime(max(path.stat().st_mtime for path in results)))
    seconds = sum(sum(raw["seconds"].values()) for raw in sweep.raw)
    ended = f"{len(sweep.results)} of {len(sweep.plan['trials'])} trials finished"
    return f"{day}, {os.cpu_count()} CPUs ({platform.machine()}); {ended}, {seconds / 60:.0f} minutes of trials."


def main() -> int:
    """Run the command line and return its exit code."""
    flags = argparse.ArgumentParser(description="Take a sweep's figure and table into its page.")
    flags.add_argument("folder", type=Path, help="of the sweep")
    flags.add_argument("page", type=Path, help="docs/sweeps/NAME.md")
    given = flags.parse_args()
    try:
        take(given.folder, given.page)
    except (ReportError, json.JSONDecodeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
