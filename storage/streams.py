"""A split as streams of tokens: what windows are cut from.

Under `document` packing each document is a stream of its own, so that a window stays inside a document. Under `eos`
packing the split is one stream: its documents in cache order with one end-of-text token between two of them. That token
exists only here, not in the cache. Empty documents are in no stream. All positions are in tokens, from 0.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from storage.errors import StorageError
from storage.token_cache import TokenCache

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Streams:
    """The streams of one split; S streams that hold D documents together."""

    cache: TokenCache = field(repr=False)
    split: str
    lengths: Int64Array
    """(S,) tokens in each stream, end-of-text tokens included."""
    documents: Int64Array
    """(D,) cache indices of the split's documents that hold text, in cache order."""
    empty_documents: int
    _starts: Int64Array = field(repr=False)
    """(D,) position at which each document starts in its stream."""

    @property
    def bytes_per_token(self) -> float:
        """UTF-8 bytes of the split's text per token: turns nats per token into bits per byte.

        An end-of-text token counts as a token, for it is predicted too, and holds no byte of the text.
        """
        return float(self.cache.text_bytes[self.documents].sum() / self.lengths.sum())

    def read(self, streams: npt.ArrayLike, positions: npt.ArrayLike) -> Int64Array:
        """Tokens at `positions` of `streams`, int64, of their broadcast shape. Positions must lie in their stream."""
        stream, position = np.broadcast_arrays(np.asarray(streams), np.asarray(positions))
        slot = self.document_slots(stream, position)
        index = self.documents[slot]
        within = position - self._starts[slot]
        begin, end = self.cache.offsets[index], self.cache.offsets[index + 1]
        tokens: Int64Array = self.cache.tokens[np.minimum(begin + within, end - 1)].astype(np.int64)
        if (end_of_text := self.cache.tokenizer.end_of_text) is not None:
            tokens[begin + within == end] = end_of_text
        return tokens

    def document_slots(self, streams: npt.ArrayLike, positions: npt.ArrayLike) -> Int64Array:
        """Which of the D documents each position lies in, 0..D-1; an end-of-text token belongs to the text it ends."""
        stream, position = np.broadcast_arrays(np.asarray(streams, np.int64), np.asarray(positions, np.int64))
        if (position < 0).any() or (position >= self.lengths[stream]).any():
            raise IndexError(f"a position lies outside its stream of the split {self.split!r}")
        if self.cache.packing == "document":
            return stream
        slots: Int64Array = np.searchsorted(self._starts, position, side="right") - 1
        return slots

    def document_start(self, slots: npt.ArrayLike) -> Int64Array:
        """Position in its stream at which each of these documents (0..D-1) starts."""
        starts: Int64Array = self._starts[np.asarray(slots)]
        return starts

    def window_counts(self, stride: int) -> Int64Array:
        """(S,) number of windows of `stride` + 1 tokens that tile each stream, neighbours sharing one token."""
        return np.maximum((self.lengths - 1) // stride, 0)

    def require_window(self, length: int, name: str) -> None:
        """Raise StorageError if no stream holds a window of `length` inputs; `name` is the setting to be changed."""
        if length < 1:
            raise StorageError(f"{name} is {length}; write a whole number of at least 1")
        longest = int(self.lengths.max()) - 1
        if length > longest:
            raise StorageError(
                f"{name} is {length}, longer than every document of the split {self.split!r}; "
                f"the longest usable value is {longest} {self.cache.tokenizer.unit}"
            )


def open_streams(cache: TokenCache, split: str) -> Streams:
    """The streams of `split` under the cache's packing. Raises StorageError if the split holds no text."""
    every = cache.documents_of(split)
    sizes = cache.offsets[every + 1] - cache.offsets[every]
    documents, sizes = every[sizes > 0], sizes[sizes > 0]
    if not len(documents):
        raise StorageError(f"the split {split!r} holds empty documents only; give documents with text")
    starts, lengths = np.zeros_like(sizes), sizes
    if cache.packing == "eos":
        starts[1:] = np.cumsum(sizes[:-1] + 1)
        lengths = starts[-1:] + sizes[-1:]
    return Streams(cache, split, lengths, documents, len(every) - len(documents), starts)
