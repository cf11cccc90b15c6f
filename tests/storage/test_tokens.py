import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.documents import data_content_hash
from storage.errors import StorageError
from storage.settings import DataSettings
from storage.tokens import BYTES, check_tokenizer, tokenizer_named
from tests.tokenizer_makers import END_OF_TEXT, VOCABULARY, added_token, changed, make_tokenizer


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


def test_bytes_are_the_utf8_bytes() -> None:
    tokens = BYTES.encode("Aé\n")
    assert tokens.dtype == np.uint16
    assert tokens.tolist() == [65, 0xC3, 0xA9, 10]


@given(st.text())
def test_decode_undoes_encode(text: str) -> None:
    assert BYTES.decode(BYTES.encode(text)) == text


def test_lone_surrogate_is_refused() -> None:
    with pytest.raises(StorageError, match="character 2 is a lone surrogate"):
        BYTES.encode("ab\ud800")


def test_a_tokenizer_file_tells_its_vocabulary_and_end_of_text(trained: Path) -> None:
    tokenizer = tokenizer_named(str(trained))
    assert (tokenizer.vocabulary, tokenizer.end_of_text, tokenizer.unit) == (VOCABULARY, 0, "tokens")
    assert tokenizer.end_of_text_name == END_OF_TEXT
    tokens = tokenizer.encode(f"a{END_OF_TEXT}b")
    assert tokens[1] == 0 and tokenizer.decode(tokens) == f"a{END_OF_TEXT}b"


@given(text=st.text())
def test_decode_undoes_encode_of_a_byte_level_file(trained: Path, text: str) -> None:
    tokenizer = tokenizer_named(str(trained))
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_tokens_are_those_of_the_library_without_special_ones_at_either_end(trained: Path) -> None:
    import tokenizers

    text = "We the people of the United States"
    library = tokenizers.Tokenizer.from_file(str(trained))
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{END_OF_TEXT} $A {END_OF_TEXT}", special_tokens=[(END_OF_TEXT, 0)]
    )
    framed = trained.with_name("framed.json")
    library.save(str(framed))
    ids = library.encode(text).ids
    assert ids[0] == ids[-1] == 0
    tokens = tokenizer_named(str(framed)).encode(text)
    assert tokens.dtype == np.uint16 and tokens.tolist() == ids[1:-1]


def test_limits_on_length_and_random_merges_of_the_file_are_switched_off(trained: Path) -> None:
    def limit(values: dict[str, Any]) -> None:
        values["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
        values["padding"] = {
            "strategy": {"Fixed": 400},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 1,
            "pad_type_id": 0,
            "pad_token": "!",
        }
        values["model"]["dropout"] = 0.5

    text = "The people of the several States " * 10
    limited = tokenizer_named(str(changed(trained, "limited.json", limit)))
    assert limited.encode(text).tolist() == tokenizer_named(str(trained)).encode(text).tolist()


def test_added_tokens_beyond_the_vocabulary_count_and_those_within_do_not(trained: Path) -> None:
    def add(values: dict[str, Any]) -> None:
        values["added_tokens"] += [added_token("        ", VOCABULARY), added_token("    ", VOCABULARY + 1)]

    tokenizer = tokenizer_named(str(changed(trained, "spaces.json", add)))
    assert tokenizer.vocabulary == VOCABULARY + 2
    assert tokenizer.encode("            ").tolist() == [VOCABULARY, VOCABULARY + 1]


def test_added_tokens_with_a_gap_are_refused_as_the_library_would_renumber_them(trained: Path) -> None:
    gap = changed(trained, "gap.json", lambda values: values["added_tokens"].append(added_token("@@", VOCABULARY + 7)))
    tokenizer = tokenizer_named(str(gap))
    with pytest.raises(StorageError, match=f"gives the token '@@' the id {VOCABULARY + 7}, but .* loads it as 500"):
        tokenizer.encode("text")


@pytest.mark.parametrize(("vocabulary", "dtype"), [(65_536, np.uint16), (65_537, np.uint32)])
def test_tokens_take_two_bytes_while_they_fit(trained: Path, vocabulary: int, dtype: type) -> None:
    def add(values: dict[str, Any]) -> None:
        values["model"]["vocab"] |= {f"filler {index}": index for index in range(VOCABULARY, vocabulary)}

    tokenizer = tokenizer_named(str(changed(trained, f"{vocabulary}.json", add)))
    assert tokenizer.vocabulary == vocabulary
    assert tokenizer.dtype == dtype and tokenizer.encode("text").dtype == dtype


@pytest.mark.parametrize("special", ["</s>", "<eos>"])
def test_other_names_of_the_end_of_text_are_known(trained: Path, special: str) -> None:
    path = make_tokenizer(trained.with_name("other.json"), ("<pad>", special))
    assert (tokenizer_named(str(path)).end_of_text, tokenizer_named(str(path)).end_of_text_name) == (1, special)


def test_without_end_of_text_only_document_packing_is_possible(trained: Path) -> None:
    path = str(make_tokenizer(trained.with_name("endless.json"), ()))
    assert check_tokenizer(DataSettings(tokenizer=path)).end_of_text is None
    with pytest.raises(StorageError, match="endless.json has none of the tokens .* write data.packing=document"):
        check_tokenizer(DataSettings(tokenizer=path, packing="eos"))


def test_unigram_vocabularies_count_by_position(tmp_path: Path) -> None:
    import tokenizers

    path = tmp_path / "unigram.json"
    pieces = [("<unk>", 0.0), ("</s>", 0.0), ("a", -1.0), ("b", -2.0)]
    tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=0)).save(str(path))
    tokenizer = tokenizer_named(str(path))
    assert (tokenizer.vocabulary, tokenizer.end_of_text) == (4, 1)
    assert tokenizer.encode("ab").tolist() == [2, 3]


def test_lone_surrogate_is_refused_by_a_file_too(trained: Path) -> None:
    with pytest.raises(StorageError, match="character 2 is a lone surrogate"):
        tokenizer_named(str(trained)).encode("ab\ud800")


def test_a_name_that_is_neither_bytes_nor_json_is_refused() -> None:
    with pytest.raises(ValueError, match="data.tokenizer is 'gpt2'; write 'bytes', the path of a Hugging Face"):
        DataSettings(tokenizer="gpt2")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no file .*tokenizer.json; write 'bytes' or the path"),
        ("{", "is not the JSON of a tokenizer .*write the path"),
        ("[]", "is not the JSON of a tokenizer"),
        ('{"model_max_length": 2048}', "is not the JSON of a tokenizer .*'model'"),
        ('{"model": {"vocab": {}}}', "is not the JSON of a tokenizer"),
        ('{"model": {"vocab": {"a": "b"}}}', "is not the JSON of a tokenizer"),
        ('{"model": {"vocab": [1]}}', "is not the JSON of a tokenizer"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(StorageError, match=message):
        check_tokenizer(DataSettings(tokenizer=str(tmp_path / "tokenizer.json")))


def test_a_file_that_the_library_cannot_load_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    with pytest.raises(StorageError, match="tokenizer.json cannot be loaded by tokenizers"):
        tokenizer_named(str(tmp_path / "tokenizer.json")).encode("a")


def test_a_file_that_changes_is_read_again(trained: Path) -> None:
    path = changed(trained, "changing.json", lambda values: None)
    first = tokenizer_named(str(path))
    changed(trained, "changing.json", lambda values: values["added_tokens"].append(added_token("@@", VOCABULARY)))
    second = tokenizer_named(str(path))
    assert second.vocabulary == first.vocabulary + 1 and second.name != first.name


def test_the_content_hash_covers_the_tokenizer_but_not_its_path(trained: Path) -> None:
    def content_hash(tokenizer: str) -> str:
        return data_content_hash(DataSettings(tokenizer=tokenizer))

    other = changed(trained, "other.json", lambda values: values["added_tokens"].append(added_token("@@", VOCABULARY)))
    copy = trained.with_name("copy.json")
    copy.write_bytes(trained.read_bytes())
    assert content_hash(str(copy)) == content_hash(str(trained))
    assert len({content_hash(name) for name in ("bytes", str(trained), str(other))}) == 3


def test_checking_a_tokenizer_imports_no_library(trained: Path) -> None:
    code = (
        "import sys; from storage.documents import data_content_hash; from storage.settings import DataSettings;"
        f"from storage.tokens import check_tokenizer; settings = DataSettings(tokenizer={str(trained)!r});"
        "check_tokenizer(settings); data_content_hash(settings);"
        "print([name for name in ('torch', 'ray', 'pandas', 'tokenizers', 'transformers') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": "."}
    )
    assert result.stdout.strip() == "[]"
