import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as effort
from hypothesis import strategies as st

from storage.errors import StorageError
from storage.hub_text import open_hub_text
from storage.settings import DataSettings
from tests.storage.dataset_makers import make_pile, pile_texts

TEXTS = pile_texts(41)


@pytest.fixture(scope="module")
def pile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pile(tmp_path_factory.mktemp("hub") / "pile", TEXTS)


def test_rows_come_in_the_order_of_the_files(pile: Path) -> None:
    with open_hub_text(DataSettings(dataset=str(pile))) as text:
        assert text.name == "pile"
        assert [*text.take(10), *text.take(100)] == TEXTS and text.row == 41
        assert text.take(5) == []


@effort(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, 41), max_size=3).map(sorted))
def test_a_stream_goes_on_exactly_where_it_was_left(pile: Path, cuts: list[int]) -> None:
    settings, state, found = DataSettings(dataset=str(pile)), None, []
    for begin, end in zip([0, *cuts], [*cuts, 41], strict=True):
        with open_hub_text(settings, state) as text:
            assert text.row == begin
            found += text.take(end - begin)
            state = json.loads(json.dumps(text.state()))
    assert found == TEXTS


def write_lines(folder: Path, rows: list[dict[str, Any]]) -> None:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def with_two_configurations(folder: Path) -> None:
    write_lines(folder, [{"text": "one"}])
    names = "".join(f"- config_name: {name}\n  data_files: rows.jsonl\n" for name in ("english", "french"))
    (folder / "README.md").write_text(f"---\nconfigs:\n{names}---\n")


def with_a_script(folder: Path) -> None:
    (folder / f"{folder.name}.py").write_text("raise SystemExit")


@pytest.mark.parametrize(
    ("make", "changes", "sentence"),
    [
        (
            lambda f: write_lines(f, [{"text": "a"}]),
            {"dataset_split": "trian"},
            "split 'trian'; it has train: write data",
        ),
        (
            lambda f: write_lines(f, [{"body": "a", "n": 1}]),
            {"field": "bodi"},
            "data.field: .* has no column 'bodi'; it has body, n: write data.field=body",
        ),
        (
            lambda f: write_lines(f, [{"text": "a"}, {"text": None}]),
            {},
            "row 1 of .* is empty .null. in the column 'text'",
        ),
        (lambda f: write_lines(f, [{"text": 3}]), {}, "row 0 of .* is of type int in the column 'text'"),
        (with_two_configurations, {}, "has several configurations; it has english, french: write data.dataset_config="),
        (
            with_two_configurations,
            {"dataset_config": "frensh"},
            "no configuration 'frensh'; it has english, french: write data.dataset_config=french",
        ),
        (lambda f: None, {}, "cannot be opened .*reads repositories and folders of parquet, JSON lines and text"),
        (with_a_script, {}, "cannot be opened .Dataset scripts are no longer supported.*runs no loading scripts"),
        (
            lambda f: (f / "rows.jsonl").write_text('{"text": "a"}\n{"te'),
            {},
            "(broke off after row 0|cannot be opened) ",
        ),
    ],
    ids=["split", "field", "null", "number", "no configuration", "configuration", "empty", "script", "damaged"],
)
def test_mistakes_are_one_sentence(
    tmp_path: Path, make: Callable[[Path], object], changes: dict[str, str], sentence: str
) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    make(folder)
    settings = DataSettings(dataset=str(folder), **changes)  # type: ignore[arg-type]
    with pytest.raises(StorageError) as caught, open_hub_text(settings) as text:
        text.take(10)
    assert re.search(sentence, str(caught.value)) and "\n" not in str(caught.value), str(caught.value)


def test_other_columns_may_hold_anything(tmp_path: Path) -> None:
    write_lines(tmp_path, [{"text": "a", "meta": {"x": 1}}, {"text": "b", "meta": {"x": "two"}}])
    with open_hub_text(DataSettings(dataset=str(tmp_path))) as text:
        assert text.take(3) == ["a", "b"]
