"""How the chunked scan cuts its work: tiles of a few rows by a few blocks of positions, small enough to stay in cache.

A tile's blocks have equal length. Its decays may be *factored* (see `models.scans.ssd_factored`) while no block decays
by more than exp(-MAX_LOG_DECAY); otherwise its blocks are halved, down to SMALLEST_BLOCK, and below that the tile is
cut into single blocks with pairwise decays, as is a tile in which a state is reset. The choice changes rounding only.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

MAX_LOG_DECAY = 80.0
"""Largest log-decay of a factored block: its factors stay within exp(40) = 2e17 of one, far from the ends of fp32."""
SMALLEST_BLOCK = 16
"""Blocks of this many positions or fewer are not halved."""
PAIRWISE_BLOCK = 32
"""Positions of a block with pairwise decays: its temporaries grow with heads times this."""
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


def row_ranges(B: int, T: int, chunk: int, device_type: str) -> list[tuple[int, int]]:
    """Return the ranges of rows worked on together: all on an accelerator, few enough for the cache on a CPU."""
    rows = max(1, TILE_POSITIONS // min(chunk, T)) if device_type == "cpu" else B
    return [(low, min(low + rows, B)) for low in range(0, B, rows)]


def plan_tiles(low: int, high: int, decay_BTH: Tensor, reset_BT: Tensor | None, chunk: int) -> list[Tile]:
    """Cut the T positions of rows [low, high) into tiles, in order of time.

    Args:
        low: first row.
        high: row after the last.
        decay_BTH: log-decays dt * A, at most 0, of all rows.
        reset_BT: positions before which the state is zeroed, or None.
        chunk: most positions per block.
    """
    T = decay_BTH.shape[1]
    # Looking at decays would make an accelerator wait for each tile: there every block is pairwise.
    if decay_BTH.device.type != "cpu":
        return list(_single_blocks(low, high, 0, T, chunk))
    whole = max(1, TILE_POSITIONS // (chunk * (high - low))) * chunk
    tiles: list[Tile] = []
    start = 0
    while start < T:
        end = min(start + whole, T)
        if end - start > chunk:
            end -= (end - start) % chunk
        blocks = _safe_blocks(decay_BTH[low:high, start:end], chunk)
        if blocks is None or (reset_BT is not None and bool(reset_BT[low:high, start:end].any())):
            tiles.extend(_single_blocks(low, high, start, end, PAIRWISE_BLOCK))
        else:
            tiles.append(Tile(low, high, start, end, blocks, factored=True))
        start = end
    return tiles


def _single_blocks(low: int, high: int, start: int, end: int, block: int) -> Iterator[Tile]:
    for first in range(start, end, block):
        yield Tile(low, high, first, min(first + block, end), 1, factored=False)


def _safe_blocks(decay_BTH: Tensor, chunk: int) -> int | None:
    """Return into how many equal blocks these positions must be cut to be factored, or None if no cut is safe."""
    length = decay_BTH.shape[1]
    blocks = max(1, length // chunk)
    while float(decay_BTH.unflatten(1, (blocks, -1)).sum(2).min()) < -MAX_LOG_DECAY:
        if length // blocks <= SMALLEST_BLOCK or (length // blocks) % 2:
            return None
        blocks *= 2
    return blocks
