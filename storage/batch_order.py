"""Which tokens row r of step s sees: a pure function of (seed, step, row), never of workers or micro-batches.

- `WindowOrder`: shuffled windows, for every arm but TBTT. Each epoch visits each window once, in an order of its own.
- `StreamOrder`: consecutive windows of the row's own text, for TBTT.

A window is T + 1 tokens, T inputs and T targets. Windows tile a stream (storage.streams) with stride T: the next starts
at the last target of the one before. Tails that fill no window are dropped and counted, never padded; documents
shorter than T + 1 are skipped and counted. G is the number of rows of a step.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from storage.errors import StorageError
from storage.permutation import KeyedPermutation, keyed_integer
from storage.splits import TRAIN
from storage.streams import Int64Array, open_streams
from storage.token_cache import TokenCache

Rows = Sequence[int] | npt.NDArray[np.integer]


class _Order:
    """What both orders share: the tiling of a split by windows of `context` + 1 tokens, and their reading."""

    def __init__(self, cache: TokenCache, *, split: str = TRAIN, context: int, rows: int, seed: int) -> None:
        """`context` T in tokens, `rows` G. Raises StorageError, naming the longest T, if no document holds T + 1."""
        if rows < 1:
            raise StorageError(f"trial.rows is {rows}; write a whole number of at least 1")
        self.streams = open_streams(cache, split)
        self.streams.require_window(context, "trial.context")
        self.context, self.rows, self.seed = context, rows, seed
        counts = self.streams.window_counts(context)
        self._usable = np.flatnonzero(counts)
        self._lengths, self._counts = self.streams.lengths[self._usable], counts[self._usable]
        self._first_window = np.concatenate([[0], np.cumsum(self._counts)])
        self.window_count = int(self._first_window[-1])
        """Windows of an epoch."""
        self.skipped_documents = len(counts) - len(self._usable) + self.streams.empty_documents
        """Documents without a single window."""
        self.dropped_tokens = int((self._lengths - (self._counts * context + 1)).sum())
        """Tokens in the tails of the other documents, after their last window."""

    def locate(self, step: int, rows: Rows) -> tuple[Int64Array, Int64Array]:
        """Stream of each row's window and its first token's position there, both (len(rows),)."""
        raise NotImplementedError

    def windows(self, step: int, rows: Rows) -> Int64Array:
        """Tokens of the windows of `rows` at `step`, int64 (len(rows), T + 1): inputs [:, :-1], targets [:, 1:]."""
        streams, positions = self._token_positions(step, rows)
        return self.streams.read(streams, positions)

    def segment_ids(self, step: int, rows: Rows) -> Int64Array:
        """Document of each token of `windows`, int64 (len(rows), T + 1), counted within the split; for `eos` packing.

        The end-of-text token belongs to the document it ends. Raises StorageError under `document` packing, where a
        window has one segment.
        """
        if self.streams.cache.packing != "eos":
            raise StorageError("data.packing is 'document', so windows have no segments; write data.packing=eos")
        return self.streams.document_slots(*self._token_positions(step, rows))

    def _token_positions(self, step: int, rows: Rows) -> tuple[Int64Array, Int64Array]:
        streams, starts = self.locate(step, rows)
        return streams[:, None], starts[:, None] + np.arange(self.context + 1)

    def _tile(self, windows: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Index among the usable streams, and start, of windows counted along the tiling."""
        usable = np.searchsorted(self._first_window, windows, side="right") - 1
        return usable, (windows - self._first_window[usable]) * self.context

    def _checked(self, step: int, rows: Rows) -> Int64Array:
        chosen = np.asarray(rows, np.int64)
        if step < 0 or chosen.ndim != 1 or (chosen < 0).any() or (chosen >= self.rows).any():
            raise IndexError(f"step {step}, rows {rows}: steps count from 0, rows from 0 to {self.rows - 1}")
        return chosen


class WindowOrder(_Order):
    """Shuffled windows without replacement within an epoch; an epoch may end, and the next begin, inside a step."""

    def locate(self, step: int, rows: Rows) -> tuple[Int64Array, Int64Array]:
        """Stream of each row's window and its first token's position there, both (len(rows),)."""
        epochs, places = np.divmod(step * self.rows + self._checked(step, rows), self.window_count)
        windows = np.empty_like(places)
        for epoch in np.unique(epochs):
            shuffle = KeyedPermutation(self.window_count, f"windows/{self.seed}/{epoch}")
            windows[epochs == epoch] = shuffle(places[epochs == epoch])
        usable, starts = self._tile(windows)
        return self._usable[usable], starts


class StreamOrder(_Order):
    """Each row reads on and on in the text: document after document in cache order, round and round.

    The usable tokens are cut into G equal parts, and row r starts at a random place of part r: rows stay far apart
    for as long as a short training lasts. The document a row starts in is tiled from that place on, the others from
    their beginning. Once round, a row meets its first document whole.
    """

    def __init__(self, cache: TokenCache, *, split: str = TRAIN, context: int, rows: int, seed: int) -> None:
        """As for `WindowOrder`; the same arguments raise the same errors."""
        super().__init__(cache, split=split, context=context, rows=rows, seed=seed)
        first_token = np.concatenate([[0], np.cumsum(self._lengths)])
        tokens = int(first_token[-1])
        edges = [row * tokens // rows for row in range(rows + 1)]
        places = np.asarray(
            [
                min(low + keyed_integer(f"streams/{seed}/{row}", max(high - low, 1)), tokens - 1)
                for row, (low, high) in enumerate(zip(edges, edges[1:], strict=False))
            ]
        )
        self._origin = np.searchsorted(first_token, places, side="right") - 1
        """(G,) index, among the usable streams, of the one each row starts in."""
        self._offset = places - first_token[self._origin]
        self._first_run = np.maximum(self._lengths[self._origin] - 1 - self._offset, 0) // context
        """(G,) windows a row reads before its first change of document; may be 0."""

    def locate(self, step: int, rows: Rows) -> tuple[Int64Array, Int64Array]:
        """Stream of each row's window and its first token's position there, both (len(rows),)."""
        chosen = self._checked(step, rows)
        origin, first_run = self._origin[chosen], self._first_run[chosen]
        usable, starts = self._tile((self._first_window[origin + 1] + step - first_run) % self.window_count)
        in_first_run = step < first_run
        usable = np.where(in_first_run, origin, usable)
        starts = np.where(in_first_run, self._offset[chosen] + step * self.context, starts)
        return self._usable[usable], starts

    def document_starts(self, step: int, rows: Rows) -> npt.NDArray[np.bool_]:
        """(len(rows),) True where a window does not continue the row's last one: step 0, and each new document.

        Under `eos` packing documents follow one another within the stream, so only step 0 and the stream's beginning
        are True.
        """
        chosen = self._checked(step, rows)
        if step == 0:
            return np.ones(len(chosen), np.bool_)
        _, starts = self.locate(step, chosen)
        begins: npt.NDArray[np.bool_] = (step >= self._first_run[chosen]) & (starts == 0)
        return begins
