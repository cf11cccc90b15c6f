"""The gated scan (GLA, RWKV-6) in matrix form: a state passed from block to block, hand-written gradients.

Work goes through tiles of a few rows by a few blocks (`models.scans.tiles`). A block is a tree over leaves
(`models.scans.gated_tree`): one leaf with factored decays where these allow it, else shorter leaves, else single
positions, which are exact at any decay and where the state is reset (`models.scans.gated_leaves`). Beyond inputs only
the states between blocks are kept; the backward pass recomputes the rest.

Legend: B batch, T position, H head, K key channel, V value channel; and of one tile: L blocks, R rows, I = R * H,
Q positions per block, N = L * I.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from models.scans.gated_leaves import TileGrads, TileInputs
from models.scans.gated_tree import backward_tile, forward_tile
from models.scans.tiles import Tile, binary_blocks, plan_tiles, row_ranges

FASTEST_DECAY = 4.0
"""Largest average log-decay per position of a factored leaf. Its gradients of decays are differences of terms of about
one; where all decays are stronger, the rounding of those would drown them."""
SMALL_STATE = 2048
"""States of this many elements or fewer are cheap to pass on: on a CPU shorter blocks are then faster."""
SHORT_BLOCK = 32
"""Positions per block then."""


def gated_chunked(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    g_BTHK: Tensor,
    h0_BHKV: Tensor | None = None,
    reset_BT: Tensor | None = None,
    *,
    bonus_HK: Tensor | None = None,
    scale: float = 1.0,
    chunk: int = 64,
) -> tuple[Tensor, Tensor]:
    """Run the recurrence in blocks of at most `chunk` positions. See `gated.GatedScan`; differentiable once."""
    if q_BTHK.device.type == "cpu" and q_BTHK.shape[3] * v_BTHV.shape[3] <= SMALL_STATE:
        chunk = min(chunk, SHORT_BLOCK)
    o_BTHV, hT_BHKV = _ChunkedScan.apply(q_BTHK, k_BTHK, v_BTHV, g_BTHK, h0_BHKV, bonus_HK, reset_BT, scale, chunk)
    return o_BTHV, hT_BHKV


@dataclass(frozen=True)
class _Inputs:
    """Tensors that every tile reads."""

    q_BTHK: Tensor
    k_BTHK: Tensor
    v_BTHV: Tensor
    g_BTHK: Tensor
    bonus_HK: Tensor | None
    reset_BT: Tensor | None
    scale: float
    chunk: int

    def block(self, tile: Tile) -> int:
        """Positions per block: `chunk` and whole leaves of the tile, or fewer."""
        length = tile.end - tile.start
        return min(length, self.chunk) if tile.factored else length // tile.blocks

    def of(self, tile: Tile) -> TileInputs:
        """Copy out a tile."""
        full, block = self.g_BTHK.dtype, self.block(tile)
        kept_NQ = None
        if self.reset_BT is not None and not tile.factored:
            kept_BTH1 = (~self.reset_BT[..., None, None]).expand(-1, -1, self.g_BTHK.shape[2], -1)
            kept_NQ = _gather(kept_BTH1, tile, block, full).squeeze(2)
        return TileInputs(
            _gather(self.q_BTHK, tile, block, full),
            _gather(self.k_BTHK, tile, block, full),
            _gather(self.v_BTHV, tile, block, full),
            _gather(self.g_BTHK, tile, block, full),
            kept_NQ,
            None if self.bonus_HK is None else self.bonus_HK.to(full),
            leaf=tile.shape[2] if tile.factored else 1,
        )

    def empty_states(self, tile: Tile) -> Tensor:
        """Room for the state before each block, (L, I, K, V)."""
        H, K, V = *self.g_BTHK.shape[2:], self.v_BTHV.shape[3]
        blocks = (tile.end - tile.start) // self.block(tile)
        return self.g_BTHK.new_empty(blocks, (tile.high - tile.low) * H, K, V)


_Kept = list[tuple[Tile, Tensor]]
"""The tiles of some rows in order of time, with the state before each block."""


class _ChunkedScan(torch.autograd.Function):
    """All heads, tile by tile."""

    @staticmethod
    def forward(
        ctx: Any,
        q_BTHK: Tensor,
        k_BTHK: Tensor,
        v_BTHV: Tensor,
        g_BTHK: Tensor,
        h0_BHKV: Tensor | None,
        bonus_HK: Tensor | None,
        reset_BT: Tensor | None,
        scale: float,
        chunk: int,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        (B, T, H, K), V = q_BTHK.shape, v_BTHV.shape[3]
        inputs = _Inputs(q_BTHK, k_BTHK, v_BTHV, g_BTHK, bonus_HK, reset_BT, scale, chunk)
        o_BTHV = v_BTHV.new_empty(B, T, H, V)
        hT_BHKV = g_BTHK.new_zeros(B, H, K, V) if h0_BHKV is None else h0_BHKV.to(g_BTHK.dtype).clone()
        kept_rows = []
        for low, high in row_ranges(B, T, chunk, q_BTHK.device.type):
            tiles = plan_tiles(low, high, g_BTHK, reset_BT, chunk, exact=binary_blocks, fastest=FASTEST_DECAY)
            start_IKV = hT_BHKV[low:high].flatten(0, 1)
            kept, after_IKV = _forward_rows(inputs, tiles, start_IKV, o_BTHV, keep=any(ctx.needs_input_grad))
            hT_BHKV[low:high] = after_IKV.view(-1, H, K, V)
            kept_rows.append(kept)
        ctx.save_for_backward(q_BTHK, k_BTHK, v_BTHV, g_BTHK, bonus_HK, reset_BT)
        ctx.kept_rows, ctx.scale, ctx.chunk = kept_rows, scale, chunk
        return o_BTHV, hT_BHKV

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do_BTHV: Tensor | None, dhT_BHKV: Tensor | None) -> tuple[Tensor | None, ...]:
        q_BTHK, k_BTHK, v_BTHV, g_BTHK, bonus_HK, reset_BT = ctx.saved_tensors
        inputs = _Inputs(q_BTHK, k_BTHK, v_BTHV, g_BTHK, bonus_HK, reset_BT, ctx.scale, ctx.chunk)
        (B, _, H, K), V = q_BTHK.shape, v_BTHV.shape[3]
        do_BTHV = torch.zeros_like(v_BTHV) if do_BTHV is None else do_BTHV
        dh0_BHKV = g_BTHK.new_zeros(B, H, K, V) if dhT_BHKV is None else dhT_BHKV.clone()
        grads = [torch.empty_like(value) for value in (q_BTHK, k_BTHK, v_BTHV, g_BTHK)]
        dbonus_HK = None if bonus_HK is None else torch.zeros_like(bonus_HK, dtype=g_BTHK.dtype)
        for kept in ctx.kept_rows:
            rows = slice(kept[0][0].low, kept[0][0].high)
            dstart_IKV = dh0_BHKV[rows].flatten(0, 1)
            for tile, states_LIKV in reversed(kept):
                do_NQV = _gather(do_BTHV, tile, inputs.block(tile), g_BTHK.dtype).mul_(ctx.scale)
                own, dstart_IKV = backward_tile(inputs.of(tile), states_LIKV, do_NQV, dstart_IKV)
                _scatter(own, tile, grads, dbonus_HK)
            dh0_BHKV[rows] = dstart_IKV.view(-1, H, K, V)
        return *grads, dh0_BHKV if ctx.needs_input_grad[4] else None, dbonus_HK, None, None, None


def _forward_rows(
    inputs: _Inputs, tiles: list[Tile], state_IKV: Tensor, o_BTHV: Tensor, keep: bool
) -> tuple[_Kept, Tensor]:
    """Run the tiles of some rows in order of time, write `o_BTHV`, and return what to keep and the final state."""
    kept = []
    for tile in tiles:
        states_LIKV = inputs.empty_states(tile)
        o_NQV, state_IKV = forward_tile(inputs.of(tile), state_IKV, states_LIKV)
        target = _items(o_BTHV, tile, inputs.block(tile))
        torch.mul(o_NQV.view(target.shape), inputs.scale, out=target)
        if keep:
            kept.append((tile, states_LIKV))
    return kept, state_IKV


def _items(v_BTHC: Tensor, tile: Tile, block: int) -> Tensor:
    """View a tile as (blocks, rows, heads, positions of a block, channels)."""
    own_RTHC = v_BTHC[tile.at]
    return own_RTHC.view(own_RTHC.shape[0], -1, block, *own_RTHC.shape[2:]).permute(1, 0, 3, 2, 4)


def _gather(v_BTHC: Tensor, tile: Tile, block: int, dtype: torch.dtype) -> Tensor:
    """Copy a tile, (N, Q, C)."""
    view = _items(v_BTHC, tile, block)
    return torch.empty(view.shape, dtype=dtype, device=view.device).copy_(view).flatten(0, 2)


def _scatter(own: TileGrads, tile: Tile, grads: list[Tensor], dbonus_HK: Tensor | None) -> None:
    """Write a tile's gradients to those of the whole, and add its gradient of the bonus."""
    for full, part in zip(grads, (own.q_NQK, own.k_NQK, own.v_NQV, own.g_NQK), strict=True):
        view = _items(full, tile, part.shape[1])
        view.copy_(part.view(view.shape))
    if dbonus_HK is not None and own.bonus_HK is not None:
        dbonus_HK.add_(own.bonus_HK)
