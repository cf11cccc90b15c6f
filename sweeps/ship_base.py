"""Put a finished `demo_base` beside the package: weights, configuration and the record of how they were made.

    python -m sweeps.ship_base runs/demo_base-1234abcd models/bases/demo-mamba2

For maintainers, after the recipe has changed. The record (`recipe.json`) holds every setting, the perplexities on the
select split while it trained, the table on the report split, date, machine and versions.
"""

import datetime
import importlib.metadata
import json
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

from storage.curve_files import read_curve
from storage.files import write_json
from sweeps.demo_base import SWEEP

WEIGHTS = ("model.safetensors", "config.json")
MOST_BYTES = 3 * 2**20
"""A shipped base is small: it travels with every clone."""


def ship(sweep: Path, target: Path) -> dict[str, Any]:
    """Copy the run's model into `target` and write its record; returns the record. Raises SystemExit with a reason."""
    folders = [path.parent for path in sweep.glob("trials/*/result.json")]
    if len(folders) != 1:
        raise SystemExit(f"{sweep} holds {len(folders)} finished trials; name the folder of one finished demo_base")
    record = make_record(folders[0])
    weights = folders[0] / "model"
    if (weights / WEIGHTS[0]).stat().st_size > MOST_BYTES:
        raise SystemExit(f"{weights / WEIGHTS[0]} is larger than {MOST_BYTES} bytes; ship a smaller base")
    target.mkdir(parents=True, exist_ok=True)
    for name in WEIGHTS:
        shutil.copyfile(weights / name, target / name)
    write_json(target / "recipe.json", record)
    return record


def make_record(trial: Path) -> dict[str, Any]:
    """What is known of a finished trial of `demo_base`."""
    result = json.loads((trial / "result.json").read_text())
    history = json.loads((trial / "history.json").read_text())
    kept = ("step", "loss", "select_ppl_train", "select_ppl_8k")
    return {
        "command": f"python -m sweeps.run demo_base{chosen(result)}",
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "deepspeed", "numpy")},
        "identity": result["identity"],
        "config": result["config"],
        "seconds": result["seconds"],
        "select_while_training": [
            {name: entry[name] for name in kept} for entry in history if "select_ppl_train" in entry
        ],
        "final": {split: read_curve(trial / name).table() for split, name in result["curves"].items()},
    }


def chosen(result: dict[str, Any]) -> str:
    """What the command line said of the model and the number of steps, where it is not what `demo_base` sets."""
    steps, architecture = result["config"]["trial"]["steps"], result["config"]["model"]["architecture"]
    said = "" if architecture == "mamba2" else f" --set model.architecture={architecture}"
    return said if steps == SWEEP.presets["demo"]["trial.steps"] else f"{said} --set trial.steps={steps}"


def main() -> None:
    """Run the command line."""
    if len(sys.argv) != 3:
        raise SystemExit("name the sweep's folder and the target, as in the docstring of sweeps/ship_base.py")
    final = ship(Path(sys.argv[1]), Path(sys.argv[2]))["final"]
    print(json.dumps(final, indent=2))


if __name__ == "__main__":
    main()
