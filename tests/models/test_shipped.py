"""The bases that travel with the package: small, honest about how they were made, failing far past their training."""

import json
from typing import Any

import pytest

from models.checkpoints import load_checkpoint
from models.content import check_checkpoint, read_header, weights_files
from models.errors import ModelError
from models.registry import ARCHITECTURES, build_model, dims
from models.settings import ModelSettings
from models.shipped import BASES, checkpoint_folder, shipped_bases
from sweeps.ship_base import MOST_BYTES

ARCHITECTURES_SHIPPED = ("gla", "mamba1", "mamba2", "rwkv6")
"""Every architecture has a base of the demo size."""


def recipe(architecture: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((BASES / f"demo-{architecture}" / "recipe.json").read_text())
    return record


def test_every_architecture_has_a_base_of_the_demo_size() -> None:
    assert set(ARCHITECTURES_SHIPPED) == set(ARCHITECTURES)
    assert shipped_bases() == [f"demo-{name}" for name in ARCHITECTURES_SHIPPED]


@pytest.mark.parametrize("architecture", ARCHITECTURES_SHIPPED)
def test_it_is_found_by_name_and_fits_the_demo_size(architecture: str) -> None:
    folder = checkpoint_folder(f"demo-{architecture}")
    check_checkpoint(folder, dims(architecture, "demo"))
    assert weights_files(folder)[0].stat().st_size <= MOST_BYTES


@pytest.mark.parametrize("architecture", ARCHITECTURES_SHIPPED)
def test_every_parameter_is_there_and_none_is_left_at_its_initial_value(architecture: str) -> None:
    folder, size = BASES / f"demo-{architecture}", dims(architecture, "demo")
    settings = ModelSettings(architecture=architecture, size="demo")
    trained = dict(load_checkpoint(folder, size).named_parameters())
    fresh = dict(build_model(settings, 256, recipe(architecture)["config"]["base"]["seed"]).named_parameters())
    assert sum(p.numel() for p in trained.values()) == size.parameters()
    assert set(read_header(weights_files(folder)[0])) == set(trained)
    assert all(not trained[name].equal(fresh[name]) for name in trained)


@pytest.mark.parametrize("architecture", ARCHITECTURES_SHIPPED)
def test_its_schedule_is_finished_and_its_perplexity_within_2_percent_of_the_best_of_its_run(architecture: str) -> None:
    record = recipe(architecture)
    measured = record["select_while_training"]
    assert measured[-1]["step"] == record["config"]["trial"]["steps"]
    assert record["final"]["select"]["ppl_train"] <= 1.02 * min(entry["select_ppl_train"] for entry in measured)


@pytest.mark.parametrize("architecture", ARCHITECTURES_SHIPPED)
def test_its_record_says_that_it_fails_and_how_to_make_it(architecture: str) -> None:
    record = recipe(architecture)
    # The text alone is worth 1.1: that much a model shows that holds its length (docs/architectures.md).
    assert record["final"]["report"]["ratio"] >= 1.4
    assert ("model.architecture" in record["command"]) == (architecture != "mamba2")


def test_a_name_that_is_neither_shipped_nor_a_folder_is_refused() -> None:
    with pytest.raises(ModelError, match="no folder and no shipped base .demo-gla, demo-mamba1, demo-mamba2"):
        checkpoint_folder("demo-mamba3")
