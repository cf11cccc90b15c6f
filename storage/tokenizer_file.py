"""A Hugging Face tokenizer.json, as far as a plan needs it: its hash, its vocabulary and its end-of-text token.

The file is read as JSON, without any library; `storage.tokens` loads it into `tokenizers` where text is encoded.
"""

import functools
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storage.errors import StorageError
from storage.hub import TOKENIZER_FILE, cached_tokenizer, split_name
from storage.settings import is_hub_tokenizer

END_OF_TEXT_NAMES = ("<|endoftext|>", "</s>", "<eos>")
"""Names of the token between documents, in order of preference: GPT-NeoX and GPT-2; Llama and T5; Gemma."""


@dataclass(frozen=True)
class TokenizerFile:
    """What the JSON of a tokenizer says."""

    path: Path
    sha256: str
    """Of the file's bytes, hex."""
    vocabulary: int
    """Largest id + 1. GPT-NeoX: 50,254 entries, and added tokens up to the id 50,276, make 50,277."""
    end_of_text: tuple[str, int] | None
    """Name and id of the token that ends a text, or None if it has none of `END_OF_TEXT_NAMES`."""
    added_tokens: dict[str, int] = field(repr=False)
    """Id of each token that is matched in the text before the model splits it, special ones included."""


def read_tokenizer_file(name: str) -> TokenizerFile:
    """Read the tokenizer.json that `data.tokenizer` names, by its path or on the Hub; once per process if unchanged.

    Raises StorageError if there is no such file, or not here yet, it cannot be read, or it is not the JSON of a
    tokenizer.
    """
    path = _path_of(name)
    if not path.is_file():
        raise StorageError(
            f"data.tokenizer: there is no file {path}; write 'bytes' or the path of a Hugging Face tokenizer.json"
        )
    status = path.stat()
    return _read(path, status.st_mtime_ns, status.st_size)


def _path_of(name: str) -> Path:
    if not is_hub_tokenizer(name):
        return Path(name).expanduser().absolute()
    if (path := cached_tokenizer(name)) is None:
        published, revision = split_name(name)
        raise StorageError(
            f"data.tokenizer: {name} is not here yet; fetch it with `hf download {published} {TOKENIZER_FILE} "
            f"--revision {revision}`"
        )
    return path


# Time and size are part of the key only: a plan asks for the vocabulary of every trial, and a file may change.
@functools.lru_cache(maxsize=8)
def _read(path: Path, modified_ns: int, size: int) -> TokenizerFile:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StorageError(
            f"data.tokenizer: {path} cannot be opened ({error.strerror}); check its permissions"
        ) from error
    try:
        values = json.loads(content)
        tokens = _model_tokens(values["model"])
        added = {str(token["content"]): int(token["id"]) for token in values.get("added_tokens") or []}
        vocabulary = 1 + max([*tokens.values(), *added.values()])
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise StorageError(
            f"data.tokenizer: {path} is not the JSON of a tokenizer ({type(error).__name__}: {error}); write the path "
            "of a Hugging Face tokenizer.json"
        ) from error
    known = {**tokens, **added}
    ends = ((name, known[name]) for name in END_OF_TEXT_NAMES if name in known)
    return TokenizerFile(path, hashlib.sha256(content).hexdigest(), vocabulary, next(ends, None), added)


def _model_tokens(model: dict[str, Any]) -> dict[str, int]:
    """Token -> id. BPE, WordPiece and WordLevel keep a mapping, Unigram a list of (token, score) by id."""
    vocab: dict[str, int] | Iterable[tuple[str, float]] = model["vocab"]
    return vocab if isinstance(vocab, dict) else {token: index for index, (token, _) in enumerate(vocab)}
