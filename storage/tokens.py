"""Tokenizers: text to tokens. There is one, `bytes`: a token is a byte of the UTF-8 encoding, vocabulary 256."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage.errors import StorageError

TOKEN_DTYPE = np.uint16
"""On disk. Holds every vocabulary up to 65,536 entries."""


@dataclass(frozen=True)
class Tokenizer:
    """What the rest of the package needs to know of a tokenizer."""

    name: str
    vocabulary: int
    """Number of tokens; all tokens are below it."""
    end_of_text: int
    """The token between documents in `eos` packing. No document may contain it there."""
    bytes_per_token: float
    """Mean number of UTF-8 bytes in a token: turns nats per token into bits per byte."""
    unit: str
    """What a position counts, for axes."""

    def encode(self, text: str) -> npt.NDArray[np.uint16]:
        """Tokens of `text`, shape (N,), uint16. Raises StorageError for text that UTF-8 cannot hold."""
        try:
            content = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise StorageError(
                f"character {error.start} is a lone surrogate, which UTF-8 cannot hold; remove it from the text"
            ) from error
        return np.frombuffer(content, np.uint8).astype(TOKEN_DTYPE)

    def decode(self, tokens: npt.NDArray[np.integer]) -> str:
        """Text of `tokens`; bytes that are not UTF-8 (a window may cut a character) become U+FFFD."""
        return np.asarray(tokens).astype(np.uint8).tobytes().decode("utf-8", errors="replace")


BYTES = Tokenizer(name="bytes", vocabulary=256, end_of_text=0, bytes_per_token=1.0, unit="bytes")


def tokenizer_named(name: str) -> Tokenizer:
    """The tokenizer of `data.tokenizer`. Raises StorageError for a name that is not there."""
    if name != BYTES.name:
        raise StorageError(f"data.tokenizer is {name!r}; the only tokenizer is {BYTES.name!r}")
    return BYTES
