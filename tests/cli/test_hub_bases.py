"""The command line with a base on the hub, served by this machine: exit codes, a dry run, and a sweep from it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from models.shipped import BASES
from tests.cli.command_line import start_driver, sweep_flags
from tests.models.hub_server import COMMIT, Hub, repository_of, serve


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with serve(Hub({"lab/demo": repository_of(BASES / "demo-mamba2")})) as served:
        yield served


def run(hub: Hub, folder: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and output of `noise_scale`."""
    variables = hub.environment(folder / "home")
    with start_driver(folder, "noise_scale", *arguments, variables=variables) as process:
        output, _ = process.communicate(timeout=840)
    return process.returncode, output


def test_a_dry_run_asks_nobody(hub: Hub, tmp_path: Path) -> None:
    code, output = run(hub, tmp_path, "--dry-run", *sweep_flags("base.checkpoint=lab/none"))
    assert code == 0, output
    assert "a run fetches first, from the hub: lab/none at main" in " ".join(output.split())
    assert hub.asked == []


def test_a_name_that_the_hub_does_not_know_is_exit_code_2(hub: Hub, tmp_path: Path) -> None:
    code, output = run(hub, tmp_path, *sweep_flags("base.checkpoint=lab/none"))
    assert code == 2, output
    assert output.startswith("error: 'lab/none' is no folder here and no model of http://127.0.0.1")
    assert output.count("\n") == 1


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_a_sweep_starts_from_the_commit_that_it_found(hub: Hub, tmp_path: Path) -> None:
    code, output = run(hub, tmp_path, *sweep_flags("base.checkpoint=lab/demo", "sweep.values=0.1"), "--out", "out")
    assert code == 0, output
    results = [json.loads(path.read_text()) for path in (tmp_path / "out").rglob("result.json")]
    assert {result["config"]["base"]["revision"] for result in results} == {COMMIT}
    assert {result["config"]["base"]["checkpoint"] for result in results} == {"lab/demo"}
    assert len(results) == 4
    assert hub.asked.count(f"GET /lab/demo/resolve/{COMMIT}/model.safetensors") == 1
