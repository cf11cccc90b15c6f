import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import StorageError
from storage.tokens import BYTES, tokenizer_named


def test_bytes_are_the_utf8_bytes() -> None:
    tokens = BYTES.encode("Aé\n")
    assert tokens.dtype == np.uint16
    assert tokens.tolist() == [65, 0xC3, 0xA9, 10]


@settings(deadline=None)
@given(st.text())
def test_decode_undoes_encode(text: str) -> None:
    assert BYTES.decode(BYTES.encode(text)) == text


def test_lone_surrogate_is_refused() -> None:
    with pytest.raises(StorageError, match="character 2 is a lone surrogate"):
        BYTES.encode("ab\ud800")


def test_unknown_tokenizer_is_refused() -> None:
    with pytest.raises(StorageError, match="only tokenizer is 'bytes'"):
        tokenizer_named("gpt2")
