"""Bases from the hub in a plan: what lies there, what a dry run says of it, and the commit that a run pins."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants

from models.checkpoints import load_checkpoint
from models.shipped import BASES
from sweeps.bases import lies_on_hub, to_fetch
from sweeps.plan import make_plan
from sweeps.planned import SweepPlan
from sweeps.settings import SettingError
from workers.settings import BaseSettings
from workers.trial import load_base

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "lab/demo"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, no network, and an empty current folder."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "hub"


def fill(cache: Path) -> None:
    """Lay the demo base down as the hub's client keeps it."""
    kept = cache / "models--lab--demo"
    shutil.copytree(BASES / "demo-mamba2", kept / "snapshots" / COMMIT)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text(COMMIT)


def plan(*assignments: str, to_show: bool = False, base: str = NAME) -> SweepPlan:
    return make_plan("noise_scale", "demo", [f"base.checkpoint={base}", *assignments], 1, to_show=to_show)


@pytest.mark.parametrize(
    ("name", "on_hub"),
    [
        (NAME, True),
        ("here/base", False),
        ("demo-mamba2", False),
        ("fresh", False),
        ("trained", False),
        ("/no/such/folder", False),
    ],
)
def test_a_folder_comes_before_a_name_on_the_hub(name: str, on_hub: bool, cache: Path) -> None:
    Path("here/base").mkdir(parents=True)
    assert lies_on_hub(BaseSettings(checkpoint=name)) == on_hub


def test_a_folder_comes_before_a_shipped_base(cache: Path) -> None:
    shipped = plan(base="demo-mamba2").trials[0].config.base
    shutil.copytree(BASES / "demo-mamba2", "demo-mamba2")
    assert shipped.checkpoint == "demo-mamba2"
    assert plan(base="demo-mamba2").trials[0].config.base.checkpoint == str(Path.cwd() / "demo-mamba2")


def test_a_dry_run_says_what_a_run_would_fetch(cache: Path) -> None:
    shown = plan(to_show=True)
    assert shown.fetches == (f"{NAME} at main (config.json and weights)",)
    assert plan("base.revision=v1", to_show=True).fetches == (f"{NAME} at v1 (config.json and weights)",)
    assert {trial.config.base.revision for trial in shown.trials} == {"main"}
    assert not cache.exists()


def test_the_commit_is_pinned_and_the_identity_is_that_of_the_content(cache: Path) -> None:
    named = plan(to_show=True).identity
    fill(cache)
    run = plan()
    assert {(one.config.base.checkpoint, one.config.base.revision) for one in run.trials} == {(NAME, COMMIT)}
    assert run.fetches == ()
    assert run.identity == plan(to_show=True).identity == plan(f"base.revision={COMMIT}").identity
    assert run.identity == plan(base="demo-mamba2").identity != named


def test_a_trial_reads_the_commit_that_was_pinned_without_asking_anybody(cache: Path) -> None:
    fill(cache)
    config = plan().trials[0].config
    (cache / "models--lab--demo" / "refs" / "main").write_text("f" * 40)
    found, right = load_base(config, torch.device("cpu")), load_checkpoint(BASES / "demo-mamba2")
    assert all(torch.equal(value, right.state_dict()[name]) for name, value in found.state_dict().items())


@pytest.mark.parametrize(
    ("assignments", "base", "sentence"),
    [
        ([], "lab/other", "lab/other at revision 'main' is not in the cache .*, and HF_HUB_OFFLINE is set"),
        (["base.revision=v2"], NAME, "lab/demo at revision 'v2' is not in the cache"),
        (["base.revision=v2"], "demo-mamba2", "base.revision is 'v2', but base.checkpoint is 'demo-mamba2'"),
        (["base.revision="], NAME, "base.revision is ''; write a branch, tag or commit"),
        (["model.size=130m"], NAME, "has d_model = 128, but the chosen model has 768"),
        ([], "no folder", "which is no folder and no shipped base .* or owner/name of a checkpoint"),
    ],
)
def test_what_cannot_be_had_or_does_not_fit_is_said(
    assignments: list[str], base: str, sentence: str, cache: Path
) -> None:
    fill(cache)
    with pytest.raises(SettingError, match=sentence) as caught:
        plan(*assignments, base=base)
    assert "\n" not in str(caught.value)


def test_a_snapshot_with_a_cut_file_is_refused(cache: Path) -> None:
    fill(cache)
    weights = cache / "models--lab--demo" / "snapshots" / COMMIT / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    for to_show in (True, False):
        with pytest.raises(SettingError, match="model.safetensors has .* bytes where its header needs"):
            plan(to_show=to_show)


def test_bases_of_several_sizes_are_listed_once_each(cache: Path) -> None:
    config = plan(to_show=True).trials[0].config
    other = replace(config, base=replace(config.base, checkpoint="lab/other"))
    assert to_fetch([config, other, config], {}) == [
        "lab/demo at main (config.json and weights)",
        "lab/other at main (config.json and weights)",
    ]
