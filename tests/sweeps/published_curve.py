"""Perplexity of a published Mamba-2 against position, from the hub: `python -m tests.sweeps.published_curve 130m`.

What it prints is JSON: perplexity over ranges of positions. The text is the stand-in of the preset `paper`.
"""

import json
import sys
import tempfile

import torch

from storage.token_cache import open_token_cache
from sweeps.plan import make_plan
from workers.evaluations.perplexity import measure
from workers.evaluations.windows import evaluation_splits
from workers.trial import load_base

RANGES = ((512, 1024), (1024, 2048), (4096, 8192))
SETTINGS = ("eval.length=8192", "eval.windows=32", "data.max_tokens=4000000", "trial.device=auto", "trial.workers=1")


def main(size: str) -> None:
    """Print the perplexity of mamba2-<size> over RANGES."""
    plan = make_plan("interventions", "paper", [f"model.size={size}", *SETTINGS], 1)
    config = next(trial.config for trial in plan.trials if trial.config.arm == "base")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        windows = evaluation_splits(config, open_token_cache(config.data, folder))["report"]
        curve = measure(load_base(config, device), windows, "report", config, device)
    print(json.dumps({f"{low}-{high}": curve.range_perplexity(low, high) for low, high in RANGES}))


if __name__ == "__main__":
    main(sys.argv[1])
