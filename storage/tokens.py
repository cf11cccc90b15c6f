"""Tokenizers: text to tokens. `bytes`, one token per byte of the UTF-8 encoding, or a Hugging Face tokenizer.json."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from storage.errors import StorageError
from storage.hub import cached_tokenizer, split_name
from storage.settings import BYTES_NAME, DataSettings, is_hub_tokenizer
from storage.tokenizer_file import END_OF_TEXT_NAMES, TokenizerFile, read_tokenizer_file

if TYPE_CHECKING:
    import tokenizers

LARGEST_UINT16_VOCABULARY = 2**16

Tokens = npt.NDArray[np.unsignedinteger]


@dataclass(frozen=True)
class Tokenizer(ABC):
    """What the rest of the package needs to know of a tokenizer, and its two directions."""

    name: str
    """Says which it is wherever the file lies: `bytes`, or the start of the file's hash."""
    vocabulary: int
    """Number of tokens; all tokens are below it."""
    end_of_text: int | None
    """The token between documents in `eos` packing; no document may contain it there. None: no such packing."""
    end_of_text_name: str
    unit: str
    """What a position counts, for axes."""

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """Of tokens on disk: uint16 for up to 65,536 entries, else uint32."""
        return np.dtype(np.uint16 if self.vocabulary <= LARGEST_UINT16_VOCABULARY else np.uint32)

    @abstractmethod
    def encode(self, text: str) -> Tokens:
        """Tokens of `text`, shape (N,), of `dtype`. Raises StorageError for text that UTF-8 cannot hold."""

    def encode_batch(self, texts: Sequence[str]) -> list[Tokens]:
        """`encode` of each text."""
        return [self.encode(text) for text in texts]

    @abstractmethod
    def decode(self, tokens: npt.NDArray[np.integer]) -> str:
        """Text of `tokens`; bytes that are not UTF-8 (a window may cut a character) become U+FFFD."""


def utf8(text: str) -> bytes:
    """The UTF-8 encoding. Raises StorageError for a lone surrogate, which it cannot hold."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise StorageError(
            f"character {error.start} is a lone surrogate, which UTF-8 cannot hold; remove it from the text"
        ) from error


@dataclass(frozen=True)
class ByteTokenizer(Tokenizer):
    """One token per byte of the UTF-8 encoding, vocabulary 256; NUL ends a text."""

    def encode(self, text: str) -> Tokens:
        """Bytes of `text`, shape (N,), uint16. Raises StorageError for text that UTF-8 cannot hold."""
        return np.frombuffer(utf8(text), np.uint8).astype(self.dtype)

    def decode(self, tokens: npt.NDArray[np.integer]) -> str:
        """Text of `tokens`; bytes that are not UTF-8 (a window may cut a character) become U+FFFD."""
        return np.asarray(tokens).astype(np.uint8).tobytes().decode("utf-8", errors="replace")


BYTES = ByteTokenizer(name=BYTES_NAME, vocabulary=256, end_of_text=0, end_of_text_name="NUL", unit="bytes")


@dataclass(frozen=True)
class FileTokenizer(Tokenizer):
    """A tokenizer.json. The `tokenizers` library is imported when the first text is encoded or decoded."""

    file: TokenizerFile = field(repr=False)

    def encode(self, text: str) -> Tokens:
        """Tokens of `text`, shape (N,), of `dtype`; none is added at either end.

        The name of an added token in the text becomes that token. Raises StorageError for text that UTF-8 cannot hold
        and for a file that the library cannot load.
        """
        utf8(text)
        return np.asarray(self._library.encode(text, add_special_tokens=False).ids, self.dtype)

    def encode_batch(self, texts: Sequence[str]) -> list[Tokens]:
        """`encode` of each text, on as many threads as the library may use (RAYON_NUM_THREADS)."""
        for text in texts:
            utf8(text)
        found = self._library.encode_batch(list(texts), add_special_tokens=False)
        return [np.asarray(one.ids, self.dtype) for one in found]

    def decode(self, tokens: npt.NDArray[np.integer]) -> str:
        """Text of `tokens`, special ones included; bytes that are not UTF-8 become U+FFFD."""
        return self._library.decode(np.asarray(tokens).tolist(), skip_special_tokens=False)

    @functools.cached_property
    def _library(self) -> "tokenizers.Tokenizer":
        return _load(self.file)


def _load(file: TokenizerFile) -> "tokenizers.Tokenizer":
    """The library's tokenizer, made deterministic and without limits on length."""
    import tokenizers

    try:
        loaded = tokenizers.Tokenizer.from_file(str(file.path))
    # The library raises plain Exception for whatever it finds wrong.
    except Exception as error:
        raise StorageError(
            f"data.tokenizer: {file.path} cannot be loaded by tokenizers {tokenizers.__version__} ({error}); write the "
            "path of a whole tokenizer.json"
        ) from error
    loaded.no_truncation()
    loaded.no_padding()
    if getattr(loaded.model, "dropout", None):
        loaded.model.dropout = None
    # The library gives an added token another id where the file's ids leave a gap; a model would see wrong tokens.
    for token, index in file.added_tokens.items():
        if (given := loaded.token_to_id(token)) != index:
            raise StorageError(
                f"data.tokenizer: {file.path} gives the token {token!r} the id {index}, but tokenizers "
                f"{tokenizers.__version__} loads it as {given}; number added tokens on from the vocabulary without gaps"
            )
    return loaded


def tokenizer_named(name: str) -> Tokenizer:
    """The tokenizer of `data.tokenizer`: `bytes`, or a tokenizer.json, of which only the JSON is read.

    Raises StorageError for a file that is not there or not a tokenizer's, and for one of the Hub that was not fetched.
    """
    if name == BYTES.name:
        return BYTES
    file = read_tokenizer_file(name)
    end_of_text_name, end_of_text = file.end_of_text or ("", None)
    return FileTokenizer(
        name=f"sha256:{file.sha256[:16]}",
        vocabulary=file.vocabulary,
        end_of_text=end_of_text,
        end_of_text_name=end_of_text_name,
        unit="tokens",
        file=file,
    )


PUBLISHED_VOCABULARIES = {"EleutherAI/gpt-neox-20b": 50277}
"""Entries of published tokenizers by their names on the Hub: a plan shows them before the file is here."""


def vocabulary_named(name: str) -> int:
    """Entries of the tokenizer of `data.tokenizer`; those of a published one are known before its file is here.

    Raises StorageError as `tokenizer_named` does.
    """
    if is_hub_tokenizer(name) and cached_tokenizer(name) is None:
        published, _ = split_name(name)
        if published in PUBLISHED_VOCABULARIES:
            return PUBLISHED_VOCABULARIES[published]
    return tokenizer_named(name).vocabulary


def check_tokenizer(settings: DataSettings) -> Tokenizer:
    """The tokenizer of these settings, after checking that it is there and allows their packing; imports no library.

    Raises StorageError as `tokenizer_named` does, and under `eos` packing for a tokenizer without end-of-text token.
    """
    tokenizer = tokenizer_named(settings.tokenizer)
    if settings.packing == "eos" and tokenizer.end_of_text is None:
        raise StorageError(
            f"data.tokenizer: {settings.tokenizer} has none of the tokens {', '.join(END_OF_TEXT_NAMES)} that can "
            "stand between documents; write data.packing=document"
        )
    return tokenizer
