"""Evaluation windows: the same for every arm, spread over documents before a document gets a second one."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from storage.errors import StorageError
from storage.streams import Int64Array, Streams, open_streams
from storage.token_cache import TokenCache


@dataclass(frozen=True, eq=False)
class EvaluationWindow:
    """`length` inputs and `length` targets in a row of text: length + 1 tokens, read from disk piece by piece."""

    document_id: str
    """The document it starts in; under `eos` packing it may run on into the next ones."""
    start: int
    """Position of its first token in that document, in tokens from 0."""
    length: int
    """Scored positions: position t (from 1) is the prediction of token t from the tokens 0..t-1."""
    _streams: Streams = field(repr=False)
    _stream: int = field(repr=False)
    _origin: int = field(repr=False)

    @property
    def unit(self) -> str:
        """What a position counts, for axes."""
        return self._streams.cache.tokenizer.unit

    @property
    def bytes_per_token(self) -> float:
        """Mean number of UTF-8 bytes in a token, over the text that the windows of this split are cut from."""
        return self._streams.bytes_per_token

    def tokens(self, start: int = 0, stop: int | None = None) -> Int64Array:
        """Tokens [start, stop) of the window's length + 1, int64 (stop - start,); only they are read.

        The inputs of positions a+1..b are tokens(a, b), their targets tokens(a + 1, b + 1).
        """
        end = self.length + 1 if stop is None else stop
        if not 0 <= start <= end <= self.length + 1:
            raise IndexError(f"tokens {start}..{end} of a window of {self.length + 1}")
        return self._streams.read(self._stream, self._origin + np.arange(start, end))


def evaluation_windows(
    cache: TokenCache, split: str, length: int, count: int, setting: str = "eval.windows"
) -> list[EvaluationWindow]:
    """The first `count` windows of `length` positions of `split`, without any randomness.

    `setting` is the setting that `count` comes from; errors name it.

    First come the documents in the order of their text hash with one window each; then their second windows, and so on.
    The first one starts at an offset that the text's hash decides, for if all started with a document, the first
    positions would be measured on nothing but openings ("Fellow citizens of the Senate"), which are easy. Windows of
    a document overlap in no scored position. A text that occurs twice counts once, so that no two windows are equal.
    Raises StorageError if there are fewer, saying how many and how long windows may be for `count` of them.
    """
    if count < 1:
        raise StorageError(f"{setting} is {count}; write a whole number of at least 1")
    streams = _without_copies(open_streams(cache, split))
    streams.require_window(length, "eval.length")
    available = int(streams.window_counts(length).sum())
    if available < count:
        raise StorageError(_too_few(streams, length, count, available, setting))
    chosen = list(_in_order(streams, length))[:count]
    return [_window(streams, stream, position, length) for stream, position in chosen]


def _without_copies(streams: Streams) -> Streams:
    """Under `document` packing, the streams without texts seen before; under `eos` the stream as training has it."""
    if streams.cache.packing != "document":
        return streams
    hashes = np.asarray([streams.cache.text_hashes[index] for index in streams.documents])
    first = np.sort(np.unique(hashes, return_index=True)[1])
    return Streams(
        streams.cache,
        streams.split,
        streams.lengths[first],
        streams.documents[first],
        streams.empty_documents,
        streams.document_start(first),
    )


def _in_order(streams: Streams, length: int) -> Iterator[tuple[int, int]]:
    """(stream, position) of every window: by its number within the document it starts in, then by the text's hash."""
    by_round: dict[int, list[tuple[str, int, int]]] = defaultdict(list)
    seen: dict[int, int] = defaultdict(int)
    for stream, windows in enumerate(streams.window_counts(length)):
        positions = _offset(streams, stream, length) + np.arange(windows) * length
        for slot, position in zip(streams.document_slots(stream, positions), positions, strict=True):
            key = streams.cache.text_hashes[streams.documents[slot]]
            by_round[seen[slot]].append((key, stream, int(position)))
            seen[slot] += 1
    for number in sorted(by_round):
        yield from ((stream, position) for _, stream, position in sorted(by_round[number]))


def _offset(streams: Streams, stream: int, length: int) -> int:
    """Where in a stream its windows begin: anywhere from 0 to the tokens that its windows leave over."""
    left_over = (int(streams.lengths[stream]) - 1) % length
    first = streams.cache.text_hashes[streams.documents[streams.document_slots(stream, 0)]]
    return int(first[:16], 16) % (left_over + 1)


def _window(streams: Streams, stream: int, position: int, length: int) -> EvaluationWindow:
    slot = int(streams.document_slots(stream, position))
    name = streams.cache.document_ids[streams.documents[slot]]
    start = position - int(streams.document_start(slot))
    return EvaluationWindow(name, start, length, streams, stream, position)


def _too_few(streams: Streams, length: int, count: int, available: int, setting: str) -> str:
    low, high = 0, length
    while high - low > 1:  # the number of windows never grows with their length
        middle = (low + high) // 2
        if streams.window_counts(middle).sum() >= count:
            low = middle
        else:
            high = middle
    longest = f"or eval.length={low} at most" if low else "or give more text"
    return (
        f"the split {streams.split!r} has {available} window(s) of eval.length={length}, fewer than "
        f"{setting}={count}; write {setting}={available} at most, {longest}"
    )
