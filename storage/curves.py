"""Perplexity by position: sums of negative log-likelihood per window and bin, in float64, and what is read from them.

W windows, B bins. Position t is the index of the predicted token within its window; the first scored position is 1.
Bin (a, b] holds the positions a + 1 .. b. Every perplexity here is exp(sum / count) over whatever it covers, never
a mean of perplexities. NLL is in nats per token. A value that is not finite stays in its sum, so that whatever is
computed from it is visibly not finite, and is counted.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from storage.errors import StorageError

Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]

FIRST_EDGE = 16
MOST_EDGES = 256
RANGE_1K, RANGE_8K = (512, 1024), (4096, 8192)
"""Positions (low, high] of the table's PPL@1K and PPL@8K."""


def bin_edges(length: int, train_length: int) -> Int64Array:
    """Edges of the bins of a window of `length` positions: 0, 16, then round(16 * 2^(k/4)), and `length`.

    Added as far as they lie inside: the training length and its half, so that the table's PPL@train is exact.
    Strictly increasing int64; every power of two from 16 on is an edge. Raises StorageError for lengths below 1.
    """
    if length < 1 or train_length < 1:
        raise StorageError(f"a window of {length} positions, trained at {train_length}: both must be at least 1")
    # 2^62 positions, the most an index can hold, make 241 edges; so 256 are never exceeded.
    ladder = (round(FIRST_EDGE * 2 ** (step / 4)) for step in range(MOST_EDGES - 6))
    edges = {0, length, *ladder, train_length, train_length // 2}
    return np.asarray(sorted(edge for edge in edges if edge <= length), np.int64)


@dataclass(frozen=True, eq=False)
class Curve:
    """One model's NLL by position on W windows. Compare with `equals`; keep with `storage.curve_files`."""

    edges: Int64Array
    """(B + 1,) strictly increasing positions from 0 to the window's length."""
    nll_sum: Float64Array
    """(W, B) nats."""
    count: Int64Array
    """(W, B) tokens."""
    nonfinite: Int64Array
    """(W,) tokens whose NLL was NaN or infinite; they are in `nll_sum` and in `count`."""
    document_ids: tuple[str, ...]
    """(W,) document each window starts in."""
    starts: Int64Array
    """(W,) position of each window's first token in that document, in tokens."""
    split: str
    train_length: int
    """Training length T in tokens."""
    unit: str = "bytes"
    """What a position counts."""
    bytes_per_token: float = 1.0
    """Turns nats per token into bits per byte."""

    def __post_init__(self) -> None:
        shape = (len(self.document_ids), len(self.edges) - 1)
        if self.nll_sum.shape != shape or self.count.shape != shape:
            raise StorageError(f"a curve of {shape} windows and bins has sums of shape {self.nll_sum.shape}")
        if self.nonfinite.shape != shape[:1] or self.starts.shape != shape[:1] or 0 in shape:
            raise StorageError(
                f"a curve of {shape} windows and bins needs one start and one count per window, and a bin"
            )
        if self.edges[0] != 0 or (np.diff(self.edges) <= 0).any():
            raise StorageError("the edges of a curve must start at 0 and increase strictly")

    @property
    def length(self) -> int:
        """Positions of a window."""
        return int(self.edges[-1])

    def perplexity(self) -> Float64Array:
        """(B,) exp(sum / count) of each bin over all windows."""
        return _exp_mean(self.nll_sum.sum(axis=0), self.count.sum(axis=0))

    def window_range_nll(self, low: int, high: int) -> tuple[Float64Array, Int64Array]:
        """NLL sum (W,) in nats and token count (W,) of each window over the positions (low, high].

        Raises StorageError if either is no edge: a part of a bin cannot be had.
        """
        for edge in (low, high):
            if edge not in self.edges:
                nearest = int(self.edges[np.abs(self.edges - edge).argmin()])
                raise StorageError(f"position {edge} is no edge of a bin; the nearest edge is {nearest}")
        inside = (self.edges[:-1] >= low) & (self.edges[1:] <= high)
        return self.nll_sum[:, inside].sum(axis=1), self.count[:, inside].sum(axis=1)

    def range_perplexity(self, low: int, high: int) -> float:
        """exp(sum / count) over the positions (low, high] of all windows; both must be edges. NaN for no position."""
        nll_sum, count = self.window_range_nll(low, high)
        return float(_exp_mean(nll_sum.sum(), count.sum()))

    def bits_per_byte(self) -> float:
        """Mean NLL of all positions, in bits per byte of text."""
        return float(self.nll_sum.sum() / self.count.sum() / math.log(2) / self.bytes_per_token)

    def train_range(self) -> tuple[int, int]:
        """Positions (low, high] of PPL@train: the upper half of the training length."""
        return self.train_length // 2, self.train_length

    def table(self) -> dict[str, float | None]:
        """The figures of a results table; None where the window is too short for one.

        `ppl_train` (upper half of the training length), `ppl_1k` (512-1K), `ppl_8k` (4K-8K), `ratio` = ppl_8k /
        ppl_train, `bits_per_byte` (all positions).
        """
        train, kilo, eight = (
            self.range_perplexity(low, high) if high <= self.length else None
            for low, high in (self.train_range(), RANGE_1K, RANGE_8K)
        )
        ratio = None if train is None or eight is None else eight / train
        bits = self.bits_per_byte()
        return {"ppl_train": train, "ppl_1k": kilo, "ppl_8k": eight, "ratio": ratio, "bits_per_byte": bits}

    def equals(self, other: "Curve") -> bool:
        """Whether every number and label is the same, bit for bit up to the kind of NaN."""
        arrays = ("edges", "nll_sum", "count", "nonfinite", "starts")
        labels = ("document_ids", "split", "train_length", "unit", "bytes_per_token")
        same_arrays = all(
            np.array_equal(getattr(self, name), getattr(other, name), equal_nan=name == "nll_sum") for name in arrays
        )
        return same_arrays and all(getattr(self, label) == getattr(other, label) for label in labels)


def _exp_mean(nll_sum: npt.ArrayLike, count: npt.ArrayLike) -> Float64Array:
    # Beyond 709 nats exp is an honest infinity, and no position at all an honest NaN.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return np.exp(np.asarray(nll_sum, np.float64) / np.asarray(count, np.float64))


@dataclass(eq=False)
class CurveBuilder:
    """Adds up a curve from chunks of per-token NLL, and refuses a position that is left out or comes twice."""

    document_ids: Sequence[str]
    starts: Sequence[int]
    length: int
    """Positions of a window."""
    train_length: int
    split: str
    unit: str = "bytes"
    bytes_per_token: float = 1.0
    _edges: Int64Array = field(init=False, repr=False)
    _nll_sum: Float64Array = field(init=False, repr=False)
    _count: Int64Array = field(init=False, repr=False)
    _nonfinite: Int64Array = field(init=False, repr=False)
    _done: Int64Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        windows = len(self.document_ids)
        self._edges = bin_edges(self.length, self.train_length)
        self._nll_sum = np.zeros((windows, len(self._edges) - 1))
        self._count = np.zeros((windows, len(self._edges) - 1), np.int64)
        self._nonfinite, self._done = np.zeros(windows, np.int64), np.zeros(windows, np.int64)

    def accumulate(self, nll_WT: npt.ArrayLike, first_position: int, first_window: int = 0) -> None:
        """Add the NLL (nats, any float dtype) of T consecutive positions from `first_position` on (1 is the first).

        The rows are the windows `first_window` and following; each takes its positions in order, from 1 to the
        window's length. Raises StorageError if a position would be lost or counted twice.
        """
        nll = np.asarray(nll_WT, np.float64)
        if nll.ndim != 2 or first_window < 0 or first_window + len(nll) > len(self._done):
            raise StorageError(
                f"NLL of shape {nll.shape} from window {first_window} on does not fit {len(self._done)} windows"
            )
        rows, last_position = slice(first_window, first_window + len(nll)), first_position + nll.shape[1] - 1
        if (self._done[rows] != first_position - 1).any() or last_position > self.length:
            raise StorageError(
                f"a position would be lost or counted twice: windows {rows.start} to {rows.stop - 1} of length "
                f"{self.length} are at {self._done[rows].tolist()}, the chunk is {first_position} to {last_position}"
            )
        if nll.size:
            self._add(nll, rows, first_position)

    def _add(self, nll: Float64Array, rows: slice, first_position: int) -> None:
        positions = np.arange(first_position, first_position + nll.shape[1])
        bins, begins, counts = np.unique(
            np.searchsorted(self._edges, positions, side="left") - 1, return_index=True, return_counts=True
        )
        self._nll_sum[rows, bins] += np.add.reduceat(nll, begins, axis=1)
        self._count[rows, bins] += counts
        self._nonfinite[rows] += (~np.isfinite(nll)).sum(axis=1)
        self._done[rows] += nll.shape[1]

    def finish(self) -> Curve:
        """The curve. Raises StorageError if a window has not reached its last position."""
        if (self._done != self.length).any():
            behind = int(np.flatnonzero(self._done != self.length)[0])
            raise StorageError(f"window {behind} has {self._done[behind]} of {self.length} positions")
        return Curve(
            edges=self._edges,
            nll_sum=self._nll_sum.copy(),
            count=self._count.copy(),
            nonfinite=self._nonfinite.copy(),
            document_ids=tuple(self.document_ids),
            starts=np.asarray(self.starts, np.int64),
            split=self.split,
            train_length=self.train_length,
            unit=self.unit,
            bytes_per_token=self.bytes_per_token,
        )
