from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants

from storage.documents import data_content_hash
from storage.errors import StorageError
from storage.hub import build_command, cached_tokenizer, commit_of, fetch_tokenizer, is_known, pinned_data
from storage.settings import DataSettings
from storage.tokens import tokenizer_named, vocabulary_named
from tests.storage.dataset_makers import make_pile
from tests.storage.dataset_server import COMMIT, Hub, serve
from tests.tokenizer_makers import VOCABULARY, make_tokenizer

PILE = "own/pile"
OTHER_COMMIT = "5" * 40


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    pile = make_pile(tmp_path / "pile", ["a", "b", "c"], files=1)
    make_tokenizer(tmp_path / "neox" / "tokenizer.json")
    (tmp_path / "bare").mkdir()
    folders = {PILE: pile, "own/gated": pile, "own/neox": tmp_path / "neox", "own/bare": tmp_path / "bare"}
    with serve(Hub(folders, gated=frozenset({"own/gated"}))) as served:
        monkeypatch.setattr(constants, "ENDPOINT", served.url)
        template = served.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        close_session()
        yield served
    close_session()


def test_a_branch_becomes_the_commit_that_it_stands_for(hub: Hub) -> None:
    settings = DataSettings(dataset=PILE, tokenizer="own/neox")
    found = pinned_data(settings)
    assert found == replace(settings, revision=COMMIT, tokenizer=f"own/neox@{COMMIT}")
    assert not is_known(settings) and is_known(found)
    asked = len(hub.asked)
    assert pinned_data(found) == found and len(hub.asked) == asked


def test_what_is_not_on_the_hub_is_not_asked_for(hub: Hub, tmp_path: Path) -> None:
    for settings in (DataSettings(), DataSettings(dataset=str(tmp_path / "pile")), DataSettings(files=("a.txt",))):
        assert pinned_data(settings) == settings and is_known(settings)
    assert not hub.asked


@pytest.mark.parametrize(
    ("dataset", "revision", "sentence"),
    [
        ("own/nothing", "", "data.dataset: there is no own/nothing on the Hugging Face Hub that you may read"),
        ("own/gated", "", "own/gated is gated on the Hugging Face Hub; ask for access on its page and log in with"),
        (PILE, "v9", "own/pile has no revision 'v9'; write a branch, a tag or a commit as data.revision"),
        ("./own/pile", "", "there is no folder ./own/pile; write owner/name of the Hub, or a folder"),
    ],
)
def test_refusals_are_one_sentence(hub: Hub, dataset: str, revision: str, sentence: str) -> None:
    with pytest.raises(StorageError, match=sentence) as caught:
        commit_of(dataset, revision)
    assert "\n" not in str(caught.value)


def test_without_the_hub_its_absence_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    close_session()
    with pytest.raises(StorageError, match="the Hugging Face Hub cannot be reached for own/pile .*; check the network"):
        commit_of(PILE, "")


def test_offline_mode_is_kept_and_said(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    close_session()
    with pytest.raises(StorageError, match="cannot be reached for own/pile .*offline"):
        commit_of(PILE, "")
    assert not hub.asked


def test_a_tokenizer_is_fetched_once_and_then_known(hub: Hub) -> None:
    assert cached_tokenizer("own/neox") is None
    with pytest.raises(StorageError, match="own/neox is not here yet; fetch it with `hf download own/neox tokenizer"):
        tokenizer_named("own/neox")
    fetched = fetch_tokenizer("own/neox")
    assert fetched == f"own/neox@{COMMIT}" and vocabulary_named(fetched) == VOCABULARY
    path = cached_tokenizer(fetched)
    assert path is not None and tokenizer_named(fetched).name == tokenizer_named(str(path)).name
    local = path.with_name("copy.json")
    local.write_bytes(path.read_bytes())
    hashes = [data_content_hash(DataSettings(tokenizer=name)) for name in (fetched, str(local), "bytes")]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("own/nothing", "data.tokenizer: there is no own/nothing on the Hugging Face Hub"),
        (
            "own/neox@v9",
            "own/neox has no revision 'v9'; write a branch, a tag or a commit as data.tokenizer=owner/name@",
        ),
        ("own/bare", "own/bare has no file tokenizer.json at the revision 'main'"),
    ],
)
def test_a_tokenizer_that_cannot_be_fetched_is_one_sentence(hub: Hub, name: str, sentence: str) -> None:
    with pytest.raises(StorageError, match=sentence):
        fetch_tokenizer(name)


def test_the_vocabulary_of_gpt_neox_is_known_before_it_is_fetched(hub: Hub) -> None:
    assert vocabulary_named("EleutherAI/gpt-neox-20b@main") == 50_277 and not hub.asked


def test_the_content_hash_of_a_dataset_follows_what_is_taken_of_which_commit_and_asks_nobody(hub: Hub) -> None:
    usual = DataSettings(dataset=PILE, revision=COMMIT, max_tokens=100)
    changes = [
        {},
        {"dataset": "own/other"},
        {"revision": OTHER_COMMIT},
        {"dataset_config": "en"},
        {"dataset_split": "validation"},
        {"field": "body"},
        {"max_tokens": 101},
    ]
    hashes = [data_content_hash(replace(usual, **change)) for change in changes]  # type: ignore[arg-type]
    assert len(set(hashes)) == len(changes)
    assert data_content_hash(replace(usual, packing="eos", cache="elsewhere")) == hashes[0] and not hub.asked
    with pytest.raises(StorageError, match="is 'main', whose content may change; write a full commit"):
        data_content_hash(replace(usual, revision="main"))


def test_the_content_hash_of_a_folder_follows_its_files_and_not_its_place(tmp_path: Path) -> None:
    texts = ["a", "b", "c"]
    folders = [make_pile(tmp_path / name, texts, files) for name, files in (("one", 1), ("two", 1), ("three", 3))]
    (folders[1] / ".cache").mkdir()
    (folders[1] / ".cache" / "lock").write_text("hidden files are none of the text")
    one, two, three = (data_content_hash(DataSettings(dataset=str(folder))) for folder in folders)
    assert one == two != three


def test_a_folder_has_no_revision(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="data.revision is 'main', but data.dataset=.* is a folder"):
        pinned_data(DataSettings(dataset=str(tmp_path), revision="main"))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"dataset": PILE, "files": ("a.txt", "b.txt")},
            "data.dataset=own/pile and data.files=a.txt,b.txt are both set",
        ),
        ({"revision": "main"}, "data.revision is 'main', but data.dataset is not set"),
        ({"files": ("a.txt",), "max_tokens": 5}, "data.max_tokens is 5, but data.dataset is not set"),
        ({"dataset": PILE, "max_tokens": -1}, "data.max_tokens is -1; write a number of tokens, or 0"),
        ({"dataset": PILE, "dataset_split": ""}, "data.dataset_split is empty"),
        ({"dataset": "EleutherAI/pile"}, "EleutherAI/pile is no longer offered.*data.dataset=monology/pile-uncopyr"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        DataSettings(**settings)  # type: ignore[arg-type]


def test_the_command_that_builds_ahead_names_what_differs_from_the_usual() -> None:
    settings = DataSettings(dataset=PILE, revision=COMMIT, max_tokens=5, tokenizer="own/neox", cache="/a b/c")
    assert build_command(settings) == (
        f"python -m storage.build_cache --dataset own/pile --revision {COMMIT} --tokenizer own/neox --max-tokens 5 "
        "--cache '/a b/c'"
    )
