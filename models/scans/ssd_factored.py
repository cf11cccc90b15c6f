"""One tile of the chunked scan with factored decays: matrix products that all heads share, and their gradients by hand.

Inside a block that starts from state S, with L_t the log-decay summed from the block's start through t, e_t = exp(L_t):

    y_t = e_t (sum_{s <= t} (C_t . B_s) v_s + C_t S),   v_s = x_s dt_s / e_s,   S' = e_last (S + sum_s v_s B_s^T)

so no decay per pair of positions and head is formed. L is summed in float64, so that the error of e does not grow with L.
Legend: R rows, K blocks, Q positions per block, M = R * K, H head, P head channel, I = H * P, N state column.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TileInputs:
    """Views or small copies of what a tile reads, in the dtype of the state."""

    x_RKQHP: Tensor
    dt_RKQH: Tensor
    decay_RKQH: Tensor
    """Log-decay of each position, dt * A."""
    B_MQN: Tensor
    C_MQN: Tensor


@dataclass(frozen=True)
class TileGrads:
    """Gradients of a tile's inputs; that of `decay` counts dt and A as constants, that of `dt` counts decay as one."""

    x_RKQHP: Tensor
    dt_RKQH: Tensor
    decay_RKQH: Tensor
    B_MQN: Tensor
    C_MQN: Tensor


def forward_tile(tile: TileInputs, start_RIN: Tensor | None, y_RKQHP: Tensor) -> tuple[Tensor | None, Tensor]:
    """Write the outputs of one tile.

    Args:
        tile: inputs.
        start_RIN: state before the tile; None is zero.
        y_RKQHP: written to.

    Returns:
        The state before each block (R, K, I, N), None if that is one block from zero, and the state after the tile (R, I, N).
    """
    R, K, Q, H, P = tile.x_RKQHP.shape
    e_RKQH = torch.exp(tile.decay_RKQH.cumsum(2, dtype=torch.float64)).to(tile.dt_RKQH.dtype)
    v_MQI = (tile.x_RKQHP * (tile.dt_RKQH / e_RKQH).unsqueeze(-1)).view(R * K, Q, H * P)
    CB_MQQ = torch.bmm(tile.C_MQN, tile.B_MQN.transpose(1, 2)).tril_()
    u_MQI = torch.bmm(CB_MQQ, v_MQI)
    last_RKH = e_RKQH[:, :, -1]
    if start_RIN is None and K == 1:
        starts, after_RIN = None, torch.bmm(v_MQI.transpose(1, 2), tile.B_MQN)
        _scale_heads(after_RIN, last_RKH[:, 0], out=after_RIN)
    else:
        added_RKIN = torch.bmm(v_MQI.transpose(1, 2), tile.B_MQN).unflatten(0, (R, K))
        starts, after_RIN = _pass_states(start_RIN, added_RKIN, last_RKH)
        u_MQI.baddbmm_(tile.C_MQN, starts.flatten(0, 1).transpose(1, 2))
    torch.mul(u_MQI.view(R, K, Q, H, P), e_RKQH.unsqueeze(-1), out=y_RKQHP)
    return starts, after_RIN


def backward_tile(
    tile: TileInputs,
    starts_RKIN: Tensor | None,
    after_RIN: Tensor,
    y_RKQHP: Tensor,
    dy_RKQHP: Tensor,
    dafter_RIN: Tensor | None,
    wants_dstart: bool,
) -> tuple[TileGrads, Tensor | None]:
    """Return the gradients of a tile's inputs, and of the state before it (None if not wanted).

    Args:
        tile: inputs, as in the forward pass.
        starts_RKIN: state before each block, from the forward pass.
        after_RIN: state after the tile, from the forward pass.
        y_RKQHP: outputs, from the forward pass.
        dy_RKQHP: gradient of the outputs.
        dafter_RIN: gradient of the state after the tile; None is zero.
        wants_dstart: whether anything before the tile needs a gradient.
    """
    R, K, Q, H, P = tile.x_RKQHP.shape
    B_MQN, C_MQN = tile.B_MQN, tile.C_MQN
    e_RKQH = torch.exp(tile.decay_RKQH.cumsum(2, dtype=torch.float64)).to(tile.dt_RKQH.dtype)
    w_RKQH = tile.dt_RKQH / e_RKQH
    v_MQI = (tile.x_RKQHP * w_RKQH.unsqueeze(-1)).view(R * K, Q, H * P)
    g_MQI = (dy_RKQHP * e_RKQH.unsqueeze(-1)).view(R * K, Q, H * P)
    dCB_MQQ = torch.bmm(g_MQI, v_MQI.transpose(1, 2)).tril_()
    dC_MQN = torch.bmm(dCB_MQQ, B_MQN)
    dB_MQN = torch.bmm(dCB_MQQ.transpose(1, 2), C_MQN)
    dv_MQI = torch.bmm(torch.bmm(C_MQN, B_MQN.transpose(1, 2)).tril_().transpose(1, 2), g_MQI)
    # y_t grows with L_t and v_s falls with L_s; the state after a block grows with the block's last L.
    dL_RKQH = (dy_RKQHP * y_RKQHP).sum(-1)
    if starts_RKIN is not None:
        dC_MQN.baddbmm_(g_MQI, starts_RKIN.flatten(0, 1))
    dstart_RIN = None
    if K > 1 or dafter_RIN is not None or wants_dstart:
        read_RKIN = torch.bmm(g_MQI.transpose(1, 2), C_MQN).unflatten(0, (R, K))
        ends = _block_ends(starts_RKIN, after_RIN)
        dadded_RKIN, dstart_RIN = _pass_gradients(dafter_RIN, read_RKIN, e_RKQH[:, :, -1], ends, dL_RKQH)
        dB_MQN.baddbmm_(v_MQI, dadded_RKIN.flatten(0, 1))
        dv_MQI.baddbmm_(B_MQN, dadded_RKIN.flatten(0, 1).transpose(1, 2))
    dv_RKQHP = dv_MQI.view(R, K, Q, H, P)
    dw_RKQH = (dv_RKQHP * tile.x_RKQHP).sum(-1)
    dL_RKQH.addcmul_(dw_RKQH, w_RKQH, value=-1)
    ddecay_RKQH = dL_RKQH.flip(2).cumsum(2).flip(2)
    dx_RKQHP = dv_RKQHP.mul_(w_RKQH.unsqueeze(-1))
    return TileGrads(dx_RKQHP, dw_RKQH.div_(e_RKQH), ddecay_RKQH, dB_MQN, dC_MQN), dstart_RIN


def _scale_heads(state_RIN: Tensor, factor_RH: Tensor, out: Tensor) -> None:
    R, H = factor_RH.shape
    torch.mul(state_RIN.view(R, H, -1), factor_RH.unsqueeze(-1), out=out.view(R, H, -1))


def _pass_states(start_RIN: Tensor | None, added_RKIN: Tensor, last_RKH: Tensor) -> tuple[Tensor, Tensor]:
    """Return the state before each block and the one after the last: S' = e_last (S + added)."""
    starts_RKIN = torch.empty_like(added_RKIN)
    state_RIN = torch.zeros_like(added_RKIN[:, 0]) if start_RIN is None else start_RIN
    for block in range(added_RKIN.shape[1]):
        starts_RKIN[:, block] = state_RIN
        state_RIN = state_RIN + added_RKIN[:, block]
        _scale_heads(state_RIN, last_RKH[:, block], out=state_RIN)
    return starts_RKIN, state_RIN


def _block_ends(starts_RKIN: Tensor | None, after_RIN: Tensor) -> list[Tensor]:
    later = [] if starts_RKIN is None else [starts_RKIN[:, block] for block in range(1, starts_RKIN.shape[1])]
    return [*later, after_RIN]


def _pass_gradients(
    dafter_RIN: Tensor | None, read_RKIN: Tensor, last_RKH: Tensor, ends: list[Tensor], dL_RKQH: Tensor
) -> tuple[Tensor, Tensor]:
    """Carry the state's gradient backwards: return that of each block's added state, and of the tile's start.

    `read_RKIN` is the part that a block's own outputs contribute; adds each block's end term to `dL_RKQH` in place.
    """
    R, K, H = last_RKH.shape
    dadded_RKIN = torch.empty_like(read_RKIN)
    dstate_RIN = torch.zeros_like(read_RKIN[:, 0]) if dafter_RIN is None else dafter_RIN
    for block in range(K - 1, -1, -1):
        dL_RKQH[:, block, -1] += (dstate_RIN * ends[block]).view(R, H, -1).sum(-1)
        dadded = dadded_RKIN[:, block]
        torch.mul(dstate_RIN.unflatten(1, (H, -1)), last_RKH[:, block, :, None, None], out=dadded.unflatten(1, (H, -1)))
        dstate_RIN = dadded + read_RKIN[:, block]
    return dadded_RKIN, dstate_RIN
