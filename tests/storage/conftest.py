"""Small token caches made in memory, for the tests of what is cut from a cache."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from storage.splits import TRAIN
from storage.token_cache import TokenCache
from storage.tokens import BYTES

MakeCache = Callable[..., TokenCache]


def cache_of_lengths(
    lengths: Sequence[int], *, packing: str = "document", splits: Sequence[str] | None = None, seed: int = 0
) -> TokenCache:
    """A cache of random documents with these lengths, all in `train` unless `splits` says otherwise."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = np.random.default_rng(seed).integers(1, 256, offsets[-1]).astype(np.uint16)
    texts = [tokens[begin:end].tobytes() for begin, end in zip(offsets, offsets[1:], strict=False)]
    return TokenCache(
        folder=Path("nowhere"),
        tokens=tokens,
        offsets=offsets,
        document_ids=tuple(f"document{index}" for index in range(len(lengths))),
        text_hashes=tuple(hashlib.sha256(text).hexdigest() for text in texts),
        text_bytes=np.asarray(lengths, np.int64),
        splits=tuple(splits or [TRAIN] * len(lengths)),
        tokenizer=BYTES,
        packing=packing,
        content_hash="",
    )


@pytest.fixture(scope="session")
def make_cache() -> MakeCache:
    return cache_of_lengths
