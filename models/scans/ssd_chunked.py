"""The scan of Mamba-2 in matrix form: blocks of positions, a state passed from block to block, hand-written gradients.

Work goes through tiles of a few rows by a few blocks (`models.scans.tiles`), factored where the decays allow it
(`models.scans.ssd_factored`) and pairwise elsewhere (`models.scans.ssd_pairwise`). Beyond inputs and outputs only the
states between blocks are kept; the backward pass recomputes the rest.

Legend: B batch, T position, H head, P head channel, I = H * P, G group, N state column; and of one tile: R rows,
K blocks, Q positions per block.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from models.scans.ssd_factored import TileGrads, TileInputs, TileStates, backward_tile, forward_tile
from models.scans.ssd_pairwise import pairwise_block
from models.scans.tiles import Tile, plan_tiles, row_ranges, single_blocks


def ssd_chunked(
    x_BTHP: Tensor,
    dt_BTH: Tensor,
    A_H: Tensor,
    B_BTGN: Tensor,
    C_BTGN: Tensor,
    h0_BHPN: Tensor | None = None,
    reset_BT: Tensor | None = None,
    *,
    chunk: int = 64,
) -> tuple[Tensor, Tensor]:
    """Run the recurrence in blocks of at most `chunk` positions. See models.scans.ssd.SsdScan; differentiable once."""
    heads = x_BTHP.shape[2] // B_BTGN.shape[2]
    outputs, finals = [], []
    for group in range(B_BTGN.shape[2]):
        own = slice(group * heads, (group + 1) * heads)
        h0 = None if h0_BHPN is None else h0_BHPN[:, own].to(dt_BTH.dtype)
        x, dt, B, C = x_BTHP[:, :, own], dt_BTH[:, :, own], B_BTGN[:, :, group], C_BTGN[:, :, group]
        y, final = _ChunkedScan.apply(x, dt, A_H[own], B, C, h0, reset_BT, chunk)
        outputs.append(y)
        finals.append(final)
    if len(outputs) == 1:
        return outputs[0], finals[0]
    return torch.cat(outputs, dim=2), torch.cat(finals, dim=1)


@dataclass(frozen=True)
class _Inputs:
    """Tensors of one group of heads that every tile reads."""

    x_BTHP: Tensor
    dt_BTH: Tensor
    decay_BTH: Tensor
    B_BTN: Tensor
    C_BTN: Tensor
    reset_BT: Tensor | None

    def of(self, tile: Tile) -> TileInputs:
        """Cut out a tile."""
        full, blocks = self.dt_BTH.dtype, (tile.blocks, -1)
        x, dt, decay = (v[tile.at].unflatten(1, blocks) for v in (self.x_BTHP, self.dt_BTH, self.decay_BTH))
        B, C = (v[tile.at].unflatten(1, blocks).flatten(0, 1).to(full) for v in (self.B_BTN, self.C_BTN))
        return TileInputs(x.to(full), dt, decay, B, C)

    def pairwise(self, tile: Tile, start_RIN: Tensor | None) -> tuple[list[Tensor], Tensor | None]:
        """Arguments of `pairwise_block` for a tile of one block: those with a gradient, and the resets."""
        own = self.of(tile)
        x, dt, decay = (v.flatten(1, 2) for v in (own.x_RKQHP, own.dt_RKQH, own.decay_RKQH))
        if start_RIN is None:
            start_RIN = x.new_zeros(x.shape[0], x.shape[2] * x.shape[3], own.B_MQN.shape[2])
        reset_RQ = None if self.reset_BT is None else self.reset_BT[tile.at]
        return [x, dt, decay, own.B_MQN, own.C_MQN, start_RIN], reset_RQ


_Kept = list[tuple[Tile, TileStates]]
"""The tiles of some rows in order of time, with what the backward pass needs of each."""


class _ChunkedScan(torch.autograd.Function):
    """One group of heads, tile by tile."""

    @staticmethod
    def forward(
        ctx: Any,
        x_BTHP: Tensor,
        dt_BTH: Tensor,
        A_H: Tensor,
        B_BTN: Tensor,
        C_BTN: Tensor,
        h0_BHPN: Tensor | None,
        reset_BT: Tensor | None,
        chunk: int,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        (B, T, H, P), N = x_BTHP.shape, B_BTN.shape[2]
        inputs = _Inputs(x_BTHP, dt_BTH, dt_BTH * A_H, B_BTN, C_BTN, reset_BT)
        y_BTHP = x_BTHP.new_empty(B, T, H, P)
        hT_BHPN = dt_BTH.new_empty(B, H, P, N)
        kept_rows = []
        for low, high in row_ranges(B, T, chunk, x_BTHP.device.type):
            start_RIN = None if h0_BHPN is None else h0_BHPN[low:high].reshape(high - low, H * P, N)
            tiles = plan_tiles(low, high, inputs.decay_BTH, reset_BT, chunk, exact=single_blocks)
            kept, after_RIN = _forward_rows(inputs, tiles, start_RIN, y_BTHP, keep=any(ctx.needs_input_grad))
            hT_BHPN[low:high] = after_RIN.view(high - low, H, P, N)
            kept_rows.append(kept)
        ctx.save_for_backward(x_BTHP, dt_BTH, A_H, inputs.decay_BTH, B_BTN, C_BTN, reset_BT, y_BTHP, hT_BHPN)
        ctx.kept_rows = kept_rows
        return y_BTHP, hT_BHPN

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_BTHP: Tensor | None, dhT_BHPN: Tensor | None) -> tuple[Tensor | None, ...]:
        x_BTHP, dt_BTH, A_H, decay_BTH, B_BTN, C_BTN, reset_BT, y_BTHP, hT_BHPN = ctx.saved_tensors
        inputs = _Inputs(x_BTHP, dt_BTH, decay_BTH, B_BTN, C_BTN, reset_BT)
        dy_BTHP = torch.zeros_like(y_BTHP) if dy_BTHP is None else dy_BTHP
        grads = [torch.empty_like(v) for v in (x_BTHP, dt_BTH, decay_BTH, B_BTN, C_BTN)]
        dh0_BHPN = torch.empty_like(hT_BHPN) if ctx.needs_input_grad[5] else None
        for kept in ctx.kept_rows:
            row = slice(kept[0][0].low, kept[0][0].high)
            dafter = None if dhT_BHPN is None else dhT_BHPN[row].flatten(1, 2)
            dstart_RIN = _backward_rows(
                inputs, kept, y_BTHP, hT_BHPN[row].flatten(1, 2), dy_BTHP, dafter, grads, dh0_BHPN is not None
            )
            if dh0_BHPN is not None and dstart_RIN is not None:
                dh0_BHPN[row] = dstart_RIN.view_as(dh0_BHPN[row])
        dx, ddt, ddecay, dB, dC = grads
        dA_H = (ddecay * dt_BTH).sum((0, 1))
        return dx, ddt.addcmul_(ddecay, A_H), dA_H, dB, dC, dh0_BHPN, None, None


def _forward_rows(
    inputs: _Inputs, tiles: list[Tile], state_RIN: Tensor | None, y_BTHP: Tensor, keep: bool
) -> tuple[_Kept, Tensor]:
    """Run the tiles of some rows in order of time, write `y_BTHP`, and return what to keep and the final state."""
    kept = []
    for tile in tiles:
        if tile.factored:
            states, after_RIN = forward_tile(inputs.of(tile), state_RIN, _blocks(y_BTHP, tile))
        else:
            states = TileStates(state_RIN, None)
            values, reset_RQ = inputs.pairwise(tile, state_RIN)
            y_BTHP[tile.at], after_RIN = pairwise_block(*values, reset_RQ=reset_RQ)
        state_RIN = after_RIN
        if keep:
            kept.append((tile, states))
    return kept, after_RIN


def _backward_rows(
    inputs: _Inputs,
    kept: _Kept,
    y_BTHP: Tensor,
    after_RIN: Tensor,
    dy_BTHP: Tensor,
    dafter_RIN: Tensor | None,
    grads: list[Tensor],
    wants_dh0: bool,
) -> Tensor | None:
    """Run the tiles of some rows backwards, write `grads` of (x, dt, decay, B, C), and return the gradient of h0."""
    for index in range(len(kept) - 1, -1, -1):
        tile, states = kept[index]
        dy_RKQHP = _blocks(dy_BTHP, tile).to(inputs.dt_BTH.dtype)
        if tile.factored:
            own, dafter_RIN = backward_tile(
                inputs.of(tile),
                states,
                after_RIN,
                _blocks(y_BTHP, tile),
                dy_RKQHP,
                dafter_RIN,
                wants_dstart=wants_dh0 or index > 0,
            )
        else:
            own, dafter_RIN = _backward_pairwise(inputs, tile, states.start_RIN, dy_RKQHP, dafter_RIN)
        for full, part in zip(grads, (own.x_RKQHP, own.dt_RKQH, own.decay_RKQH, own.B_MQN, own.C_MQN), strict=True):
            full[tile.at] = part.view_as(full[tile.at])
        if states.start_RIN is not None:
            after_RIN = states.start_RIN
    return dafter_RIN


def _backward_pairwise(
    inputs: _Inputs, tile: Tile, start_RIN: Tensor | None, dy_RKQHP: Tensor, dafter_RIN: Tensor | None
) -> tuple[TileGrads, Tensor]:
    """Return the gradients of a tile of one block with pairwise decays, by running it again under autograd."""
    values, reset_RQ = inputs.pairwise(tile, start_RIN)
    with torch.enable_grad():
        leaves = [value.detach().requires_grad_() for value in values]
        y, after = pairwise_block(*leaves, reset_RQ=reset_RQ)
        dafter = torch.zeros_like(after) if dafter_RIN is None else dafter_RIN
        dx, ddt, ddecay, dB, dC, dstart = torch.autograd.grad((y, after), leaves, (dy_RKQHP.squeeze(1), dafter))
    return TileGrads(dx.unsqueeze(1), ddt.unsqueeze(1), ddecay.unsqueeze(1), dB, dC), dstart


def _blocks(v_BTHP: Tensor, tile: Tile) -> Tensor:
    return v_BTHP[tile.at].unflatten(1, (tile.blocks, -1))
