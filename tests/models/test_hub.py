"""Checkpoints of the hub, through its own client and a server on this machine that answers as the hub does."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from models.checkpoints import save_checkpoint
from models.hub import is_hub_id
from tests.models.hub_server import COMMIT, Hub, Repository, repository_of, serve
from tests.models.makers import TINY, random_model

ROOT = Path(__file__).parents[2]
NOWHERE = "http://127.0.0.1:9"
ASK = """
import json, sys
from huggingface_hub import constants
from models.errors import ModelError
from models.hub import cached_snapshot, fetch_snapshot

def answer(ask, name, revision):
    try:
        snapshot = ask(name, revision)
    except ModelError as error:
        return str(error)
    return snapshot and [snapshot.commit, *sorted(path.name for path in snapshot.folder.iterdir())]

asks = {"fetch": fetch_snapshot, "cached": cached_snapshot}
answers = {}
for question in json.loads(sys.argv[1]):
    how, ask, name, revision = question.split()
    constants.HF_HUB_OFFLINE = how == "offline"
    constants.ENDPOINT = sys.argv[2] if how == "unreachable" else sys.argv[3]
    answers[question] = answer(asks[ask], name, revision)
print(json.dumps(answers))
"""
GOOD = [COMMIT, "config.json", "model.safetensors", "tokenizer.json"]
ANSWERS: dict[str, list[str] | None] = {
    "online cached lab/good v1": None,
    "offline fetch lab/good v1": [
        "lab/good at revision 'v1' is not in the cache",
        "HF_HUB_OFFLINE is set: fetch lab/good where there is a network, or give a folder as base.checkpoint",
    ],
    "online fetch lab/good v1": GOOD,
    "online cached lab/good v1 ": GOOD,
    f"online fetch lab/good {COMMIT}": GOOD,
    "offline fetch lab/good v1 ": GOOD,
    f"unreachable fetch lab/good {COMMIT}": GOOD,
    "unreachable fetch lab/good v1": [
        f"{NOWHERE} cannot be reached for lab/good: set HF_HUB_OFFLINE=1 to use commit {COMMIT}"
    ],
    "unreachable fetch lab/none main": [f"{NOWHERE} cannot be reached for lab/none", "give a folder"],
    "online fetch lab/parts main": [
        COMMIT,
        "config.json",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
    ],
    "online fetch lab/none main": ["'lab/none' is no folder here and no model of", "correct base.checkpoint"],
    "online fetch lab/private main": ["'lab/private' is no folder", "log in with `hf auth login` if the model is priv"],
    "online fetch lab/gated main": ["lab/gated may be read only by those whom its owner lets in", "/lab/gated and log"],
    "online fetch lab/good v2": ["lab/good has no revision 'v2'", "set base.revision to a branch, tag or commit"],
    "online fetch lab/down main": ["answered 500 when asked for lab/down", "try again later"],
    "online fetch lab/text main": ["lab/text on the hub has no config.json"],
}
"""How, what, of which model and revision -> what is found: commit and files, or parts of the sentence that says why."""

Answers = dict[str, list[str] | str | None]


def ask(hub: Hub, home: Path, questions: Iterable[str]) -> Answers:
    """Answers to questions in their order, from a process whose hub and cache these are."""
    process = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps(list(questions)), NOWHERE, hub.url],
        cwd=ROOT,
        env={**os.environ, **hub.environment(home)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert process.returncode == 0, process.stderr
    answers: Answers = json.loads(process.stdout)
    return answers


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    base = tmp_path_factory.mktemp("hub") / "base"
    save_checkpoint(random_model("mamba2"), TINY, base)
    (base / "tokenizer.json").write_text("{}")
    (base / "README.md").write_text("of no use here")
    shutil.copy(base / "model.safetensors", base / "pytorch_model.bin")
    part = "model-00001-of-00002.safetensors"
    index = json.dumps({"weight_map": {"one": part}}).encode()
    repositories = {
        "lab/good": repository_of(base),
        "lab/parts": Repository(
            {"config.json": b"{}", part: b"", "model.safetensors.index.json": index, "other.safetensors": b""}
        ),
        "lab/gated": repository_of(base, gated=True),
        "lab/private": Repository({}, refused=(401, "RepoNotFound")),
        "lab/down": Repository({}, refused=(500, "")),
        "lab/text": Repository({"README.md": b""}),
        "lab/cut": repository_of(base, cut=frozenset({"model.safetensors"})),
    }
    with serve(Hub(repositories)) as served:
        yield served


@pytest.fixture(scope="module")
def answers(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return ask(hub, tmp_path_factory.mktemp("home"), ANSWERS)


@pytest.mark.parametrize(
    ("name", "is_id"),
    [
        ("state-spaces/mamba2-130m", True),
        ("RWKV/rwkv-6-world-1b6", True),
        ("fla-hub/gla-1.3B-100B", True),
        ("demo-mamba2", False),
        ("/a/folder", False),
        ("./a/folder", False),
        ("../folder", False),
        ("a/b/c", False),
        ("~/folder", False),
    ],
)
def test_a_hub_id_is_an_owner_and_a_name(name: str, is_id: bool) -> None:
    assert is_hub_id(name) == is_id


@pytest.mark.parametrize("question", ANSWERS)
def test_what_is_found_or_why_not(question: str, answers: Answers) -> None:
    found, right = answers[question], ANSWERS[question]
    if isinstance(found, str):
        assert right is not None and all(part in found for part in right), found
        assert "\n" not in found
    else:
        assert found == right


def test_weights_are_fetched_once(answers: Answers, hub: Hub) -> None:
    assert answers
    assert hub.asked.count(f"GET /lab/good/resolve/{COMMIT}/model.safetensors") == 1
    assert not [asked for asked in hub.asked if "lab/good" in asked and f"revision/{COMMIT}" in asked]


@pytest.mark.slow
def test_a_file_that_comes_cut_is_not_taken_for_whole(hub: Hub, tmp_path: Path) -> None:
    fetch, cached = "online fetch lab/cut main", "online cached lab/cut main"
    answers = ask(hub, tmp_path, [fetch, cached])
    assert str(answers[fetch]).startswith("lab/cut did not come whole from the hub (peer closed connection")
    assert answers[cached] is None
