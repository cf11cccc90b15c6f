"""The shipped base measured again: what its record says is what its weights do."""

import json
from pathlib import Path

import pytest
import torch

from models.checkpoints import load_checkpoint
from models.registry import dims
from models.shipped import BASES
from storage.token_cache import open_token_cache
from storage.windows import evaluation_windows
from workers.evaluations.perplexity import measure
from workers.settings import EvalSettings, TrialConfig


def test_it_fails_past_its_training_length_on_the_report_split(token_caches: Path) -> None:
    folder = BASES / "demo-mamba2"
    recipe = json.loads((folder / "recipe.json").read_text())
    config = TrialConfig(arm="base", eval=EvalSettings(length=16384, windows=16, chunk=1024))
    windows = evaluation_windows(open_token_cache(config.data, token_caches), "report", 16384, 16)
    model = load_checkpoint(folder, dims("mamba2", "demo"))
    table = measure(model, windows, "report", config, torch.device("cpu")).table()
    assert table["ratio"] is not None and table["ratio"] >= 1.4
    for name, value in recipe["final"]["report"].items():
        assert table[name] == pytest.approx(value, rel=1e-3), name
