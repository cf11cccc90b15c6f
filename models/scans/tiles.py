"""How a chunked scan cuts its work: tiles of a few rows by a few blocks of positions, small enough to stay in cache.

A tile's blocks have equal length. Its decays may be *factored* (see `models.scans.ssd_factored` and
`models.scans.gated_leaves`) while no block decays by more than exp(-MAX_LOG_DECAY); otherwise its blocks are halved,
down to SMALLEST_BLOCK, and below that the tile is cut into blocks of an exact form, as is a tile in which a state is
reset. The choice changes rounding only.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

MAX_LOG_DECAY = 80.0
"""Largest log-decay of a factored block: its factors stay within exp(40) = 2e17 of one, far from the ends of fp32."""
SMALLEST_BLOCK = 16
"""Blocks of this many positions or fewer are not halved."""
EXACT_BLOCK = 32
"""Positions of a block in an exact form: the temporaries of SSD's pairwise form grow with heads times this."""
TILE_POSITIONS = 512
"""Rows times positions of a CPU tile."""


@dataclass(frozen=True)
class Tile:
    """Rows [low, high) and positions [start, end), the latter in `blocks` blocks of equal length."""

    low: int
    high: int
    start: int
    end: int
    blocks: int
    factored: bool

    @property
    def at(self) -> tuple[slice, slice]:
        """Index of the tile in a tensor (B, T, ...)."""
        return slice(self.low, self.high), slice(self.start, self.end)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, blocks, positions per block."""
        return self.high - self.low, self.blocks, (self.end - self.start) // self.blocks


ExactTiles = Callable[[int, int, int, int, int], Iterator[Tile]]
"""(low, high, start, end, block) -> the tiles of an exact form that cover those rows and positions."""


def row_ranges(B: int, T: int, chunk: int, device_type: str) -> list[tuple[int, int]]:
    """Return the ranges of rows worked on together: all on an accelerator, few enough for the cache on a CPU."""
    rows = max(1, TILE_POSITIONS // min(chunk, T)) if device_type == "cpu" else B
    return [(low, min(low + rows, B)) for low in range(0, B, rows)]


def plan_tiles(
    low: int,
    high: int,
    decay_BT: Tensor,
    reset_BT: Tensor | None,
    chunk: int,
    *,
    exact: ExactTiles,
    fastest: float = math.inf,
) -> list[Tile]:
    """Cut the T positions of rows [low, high) into tiles, in order of time.

    Args:
        low: first row.
        high: row after the last.
        decay_BT: log-decays, at most 0, of all rows, with any further dimensions: (B, T, ...).
        reset_BT: positions before which the state is zeroed, or None.
        chunk: most positions per block.
        exact: how to cut where decays cannot be factored.
        fastest: a block whose log-decay per position is larger than this on average is not factored either.
    """
    T = decay_BT.shape[1]
    # Looking at decays would make an accelerator wait for each tile: there every block has the exact form.
    if decay_BT.device.type != "cpu":
        return list(exact(low, high, 0, T, chunk))
    whole = max(1, TILE_POSITIONS // (chunk * (high - low))) * chunk
    tiles: list[Tile] = []
    start = 0
    while start < T:
        end = min(start + whole, T)
        if end - start > chunk:
            end -= (end - start) % chunk
        blocks = _safe_blocks(decay_BT[low:high, start:end], chunk, fastest)
        if blocks is None or (reset_BT is not None and bool(reset_BT[low:high, start:end].any())):
            tiles.extend(exact(low, high, start, end, EXACT_BLOCK))
        else:
            tiles.append(Tile(low, high, start, end, blocks, factored=True))
        start = end
    return tiles


def single_blocks(low: int, high: int, start: int, end: int, block: int) -> Iterator[Tile]:
    """Tiles of one block each, the last perhaps shorter."""
    for first in range(start, end, block):
        yield Tile(low, high, first, min(first + block, end), 1, factored=False)


def binary_blocks(low: int, high: int, start: int, end: int, block: int) -> Iterator[Tile]:
    """Tiles whose blocks are powers of two of at most `block` positions, as long as possible."""
    size = 1 << (block.bit_length() - 1)
    while start < end:
        blocks = (end - start) // size
        if blocks:
            yield Tile(low, high, start, start + blocks * size, blocks, factored=False)
            start += blocks * size
        size //= 2


def _safe_blocks(decay_BT: Tensor, chunk: int, fastest: float) -> int | None:
    """Return into how many equal blocks these positions must be cut to be factored, or None if no cut is safe."""
    length = decay_BT.shape[1]
    blocks = max(1, length // chunk)
    while float(decay_BT.unflatten(1, (blocks, -1)).sum(2).min()) < -min(MAX_LOG_DECAY, fastest * length / blocks):
        if length // blocks <= SMALLEST_BLOCK or (length // blocks) % 2:
            return None
        blocks *= 2
    return blocks
