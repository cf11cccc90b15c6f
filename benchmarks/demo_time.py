"""Where the time of a finished sweep went, or of the whole catalogue, from their own records.

python -m benchmarks.demo_time runs/noise_scale-1234abcd
python -m benchmarks.demo_time runs/catalogue.json
"""

import json
import sys
from pathlib import Path

from benchmarks.markdown import header, table


def main() -> None:
    """Print the table of the sweep folder, or of the catalogue's record, that is named."""
    if len(sys.argv) != 2:
        raise SystemExit("name the folder of a finished sweep, or runs/catalogue.json")
    path = Path(sys.argv[1])
    (print_sweep if path.is_dir() else print_catalogue)(path)


def print_catalogue(path: Path) -> None:
    """A row per sweep: seconds of its command from start to table, as `python -m sweeps.run --all` recorded them."""
    record = json.loads(path.read_text())
    failed = [name for name, entry in record.items() if entry["exit_code"]]
    if failed:
        raise SystemExit(f"not all sweeps succeeded: {', '.join(failed)}; run python -m sweeps.run --all again")
    print(header("Time of the whole catalogue"))
    print(table(["sweep", "seconds"], [[name, f"{entry['seconds']:.0f}"] for name, entry in record.items()]))
    total = sum(entry["seconds"] for entry in record.values())
    print(f"{len(record)} sweeps in {total:.0f} s, {total / 60:.0f} min.")


def print_sweep(folder: Path) -> None:
    """A row per trial of the sweep in `folder`."""
    plan = json.loads((folder / "sweep.json").read_text())
    labels = {trial["identity"]: trial["label"] for trial in plan["trials"]}
    results = [json.loads(path.read_text()) for path in sorted(folder.glob("trials/*/result.json"))]
    print(header(f"Time of the sweep {plan['sweep']}"))
    rows = []
    for result in sorted(results, key=lambda result: list(labels).index(result["identity"])):
        seconds = result["seconds"]
        total = sum(seconds.values())
        rows.append(
            [
                labels[result["identity"]],
                f"{seconds['training']:.1f} s",
                f"{seconds['evaluation']:.1f} s",
                f"{seconds['diagnostics']:.1f} s",
                f"{seconds['checkpoints']:.2f} s",
                f"{total:.1f} s",
                f"{seconds['training'] / total:.0%}",
                f"{seconds['evaluation'] / total:.0%}",
                f"{seconds['diagnostics'] / total:.0%}",
                f"{seconds['checkpoints'] / total:.1%}",
            ]
        )
    columns = ["trial", "training", "evaluation", "diagnostics", "checkpoints", "in all"]
    shares = [f"{what} share" for what in ("training", "evaluation", "diagnostics", "checkpoint")]
    print(table([*columns, *shares], rows))
    wall = json.loads((folder / "session.json").read_text())
    print(f"Wall time of the last run: {wall['seconds']:.0f} s, {wall['trials']} trials, {wall['at_once']} at once.")


if __name__ == "__main__":
    main()
