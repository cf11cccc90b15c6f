from pathlib import Path

import pytest

from storage.documents import check_files
from storage.settings import DataSettings
from sweeps.settings import SettingError, Settings, build_settings, known_settings, parse_value

SIGMA = "intervention.sigma"


def test_defaults_need_no_assignment() -> None:
    assert build_settings({}, [], SIGMA) == Settings()


def test_assignments_win_over_the_preset() -> None:
    settings = build_settings({"trial.steps": 2000}, ["trial.steps=5", "optimizer.peak_lr=1e-3"], SIGMA)
    assert settings.trial.steps == 5 and settings.optimizer.peak_lr == 1e-3


def test_lists_are_split_at_commas() -> None:
    assert parse_value("sweep.values", "[0.1, 1e-2]") == (0.1, 0.01)
    assert parse_value("intervention.parts", "recurrent,conv") == ("recurrent", "conv")
    assert parse_value("data.files", "[ab]*.txt") == ("[ab]*.txt",)


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("trial.step=5", "there is no setting 'trial.step'; did you mean 'trial.steps'"),
        ("steps=5", "there is no setting 'steps'"),
        ("trial.steps", "has no value; write --set trial.steps=value"),
        ("trial.steps=many", "trial.steps is 'many'; write a whole number"),
        ("trial.steps=0", "trial.steps is 0; write a whole number of at least 1"),
        ("sweep.values=0.1,x", "sweep.values is 'x'; write a number"),
        ("model.size=demoo", "demo"),
        ("data.tokenizer=gpt2", "data.tokenizer is 'gpt2'; write 'bytes', the path of a Hugging Face tokenizer.json"),
        ("tracking.uri=file:./mlruns", "write sqlite:///mlflow.db"),
        ("intervention.sigma=0.1", "what this sweep varies; write --set sweep.values="),
    ],
)
def test_mistakes_are_one_sentence_that_says_what_to_write(assignment: str, sentence: str) -> None:
    with pytest.raises(SettingError) as caught:
        build_settings({}, [assignment], SIGMA)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a name that is itself a pattern."""
    folder = tmp_path / "[ab] texts"
    for name in ("base", "fresh", "deep"):
        (folder / name).mkdir(parents=True)
    for name in ("b.txt", "a.txt", "deep/c.txt"):
        (folder / name).write_text("text")
    monkeypatch.chdir(folder)
    return folder


def test_relative_paths_become_absolute(here: Path) -> None:
    assignments = ["data.files=a.txt,missing.txt", "data.tokenizer=tokenizer.json", "base.checkpoint=base"]
    settings = build_settings({}, assignments, SIGMA)
    assert settings.data.files == (str(here / "a.txt"), str(here / "missing.txt"))
    assert settings.data.tokenizer == str(here / "tokenizer.json")
    assert settings.base.checkpoint == str(here / "base")


def test_globs_stay_globs_and_find_the_same_files_from_elsewhere(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = build_settings({}, ["data.files=*.txt,**/c.txt"], SIGMA).data.files
    monkeypatch.chdir("/")
    assert len(files) == 2 and all(name.startswith("/") and "*" in name for name in files)
    assert check_files(DataSettings(files=files)) == (here / "a.txt", here / "b.txt", here / "deep" / "c.txt")


def test_absolute_paths_and_the_home_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here))
    settings = build_settings({}, ["data.files=/texts/*.txt,~/a.txt", "data.tokenizer=~/deep/t.json"], SIGMA)
    assert settings.data == DataSettings(
        files=("/texts/*.txt", str(here / "a.txt")), tokenizer=str(here / "deep" / "t.json")
    )


@pytest.mark.parametrize("name", ["fresh", "no-such-folder"])
def test_names_of_bases_are_no_paths(here: Path, name: str) -> None:
    assert build_settings({}, [f"base.checkpoint={name}"], SIGMA).base.checkpoint == name
    assert build_settings({}, [], SIGMA).data.tokenizer == "bytes"


def test_every_setting_has_a_help_text_below_it() -> None:
    import ast
    import inspect

    from sweeps.settings import GROUPS

    for group in GROUPS.values():
        body = ast.parse(inspect.getsource(group)).body[0].body  # type: ignore[attr-defined]
        for field, after in zip(body, [*body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign):
                assert isinstance(after, ast.Expr), f"{group.__name__}.{ast.unparse(field.target)} is not explained"
    assert len(known_settings()) == len(set(known_settings()))
