"""The shipped bases measured again: what their records say is what their weights do."""

import json
from pathlib import Path

import pytest
import torch

from models.checkpoints import load_checkpoint
from models.registry import dims
from models.shipped import BASES, shipped_bases
from storage.token_cache import open_token_cache
from storage.windows import evaluation_windows
from workers.evaluations.perplexity import measure
from workers.settings import EvalSettings, TrialConfig


@pytest.mark.parametrize("name", shipped_bases())
def test_it_fails_past_its_training_length_on_the_select_split_as_recorded(name: str, token_caches: Path) -> None:
    recipe = json.loads((BASES / name / "recipe.json").read_text())
    config = TrialConfig(arm="base", eval=EvalSettings(length=16384, chunk=1024))
    windows = evaluation_windows(open_token_cache(config.data, token_caches), "select", 16384, 8)
    model = load_checkpoint(BASES / name, dims(recipe["config"]["model"]["architecture"], "demo"))
    table = measure(model, windows, "select", config, torch.device("cpu")).table()
    assert table["ratio"] is not None and table["ratio"] >= 1.4
    for key, value in recipe["final"]["select"].items():
        assert table[key] == pytest.approx(value, rel=1e-3), key
