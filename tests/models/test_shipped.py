"""The base that travels with the package: small, honest about how it was made, and failing far past its training."""

import json

import pytest

from models.checkpoints import load_checkpoint
from models.content import check_checkpoint, read_header, weights_file
from models.errors import ModelError
from models.registry import dims
from models.shipped import BASES, checkpoint_folder, shipped_bases

DEMO = BASES / "demo-mamba2"
RECIPE = json.loads((DEMO / "recipe.json").read_text())


def test_it_is_found_by_name_and_fits_the_demo_size() -> None:
    assert "demo-mamba2" in shipped_bases()
    check_checkpoint(checkpoint_folder("demo-mamba2"), dims("mamba2", "demo"))
    assert weights_file(DEMO).stat().st_size <= 2 * 2**20


def test_every_parameter_is_there_and_none_is_left_at_its_initial_value() -> None:
    from models.registry import build_model
    from models.settings import ModelSettings

    trained = dict(load_checkpoint(DEMO, dims("mamba2", "demo")).named_parameters())
    fresh = dict(build_model(ModelSettings(), 256, seed=RECIPE["config"]["base"]["seed"]).named_parameters())
    assert sum(p.numel() for p in trained.values()) == dims("mamba2", "demo").parameters()
    assert set(read_header(weights_file(DEMO))) == set(trained)
    assert all(not trained[name].equal(fresh[name]) for name in trained)


def test_its_schedule_is_finished_and_its_perplexity_within_2_percent_of_the_best_of_its_run() -> None:
    steps = RECIPE["config"]["trial"]["steps"]
    measured = RECIPE["select_while_training"]
    assert measured[-1]["step"] == steps
    best = min(entry["select_ppl_train"] for entry in measured)
    assert RECIPE["final"]["select"]["ppl_train"] <= 1.02 * best


def test_its_record_says_that_it_fails() -> None:
    assert RECIPE["final"]["report"]["ratio"] >= 1.4


def test_a_name_that_is_neither_shipped_nor_a_folder_is_refused() -> None:
    with pytest.raises(ModelError, match="no folder and no shipped base .demo-mamba2"):
        checkpoint_folder("demo-mamba3")
