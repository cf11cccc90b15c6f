"""One tile of the chunked scan with factored decays: matrix products that all heads share, and their gradients by hand.

Inside a block that starts from state S, with L_t the log-decay summed from the block's start through t, m half of its
last value and e_t = exp(L_t - m),

    y_t = e_t (sum_{s <= t} (C_t . B_s) v_s + C_t R),   v_s = x_s dt_s / e_s,   R = exp(m) S,
    S' = e_last (R + sum_s v_s B_s^T)

so no decay per pair of positions and head is formed. L is summed in float64: the error of e does not grow with L.
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
    """Gradients of a tile's inputs: of `dt` with the decay held fixed, of `decay` with dt held fixed."""

    x_RKQHP: Tensor
    dt_RKQH: Tensor
    decay_RKQH: Tensor
    B_MQN: Tensor
    C_MQN: Tensor


@dataclass(frozen=True)
class TileStates:
    """States that the backward pass of a tile needs. None is zero, possible if the tile is one block."""

    start_RIN: Tensor | None
    """Before the tile."""
    scaled_RKIN: Tensor | None
    """exp(m) S of each block; None too after a pairwise tile."""


def forward_tile(tile: TileInputs, start_RIN: Tensor | None, y_RKQHP: Tensor) -> tuple[TileStates, Tensor]:
    """Write the outputs of one tile to `y_RKQHP`; return the states to keep and the state after the tile (R, I, N).

    Args:
        tile: inputs.
        start_RIN: state before the tile; None is zero.
        y_RKQHP: written to.
    """
    R, K, Q, H, P = tile.x_RKQHP.shape
    e_RKQH, half_RKH = _decay_factors(tile)
    v_MQI = (tile.x_RKQHP * (tile.dt_RKQH / e_RKQH).unsqueeze(-1)).view(R * K, Q, H * P)
    u_MQI = torch.bmm(_masked_CB(tile), v_MQI)
    added_RKIN = torch.bmm(v_MQI.transpose(1, 2), tile.B_MQN).unflatten(0, (R, K))
    scaled_RKIN = None
    if start_RIN is None and K == 1:
        after_RIN = scale_heads(added_RKIN[:, 0], e_RKQH[:, 0, -1])
    else:
        start_RIN = torch.zeros_like(added_RKIN[:, 0]) if start_RIN is None else start_RIN
        scaled_RKIN, after_RIN = _pass_states(start_RIN, added_RKIN, half_RKH, e_RKQH[:, :, -1])
        u_MQI.baddbmm_(tile.C_MQN, scaled_RKIN.flatten(0, 1).transpose(1, 2))
    torch.mul(u_MQI.view(R, K, Q, H, P), e_RKQH.unsqueeze(-1), out=y_RKQHP)
    return TileStates(start_RIN, scaled_RKIN), after_RIN


def backward_tile(
    tile: TileInputs,
    states: TileStates,
    after_RIN: Tensor,
    y_RKQHP: Tensor,
    dy_RKQHP: Tensor,
    dafter_RIN: Tensor | None,
    wants_dstart: bool,
) -> tuple[TileGrads, Tensor | None]:
    """Return the gradients of a tile's inputs, and of the state before it (None if nothing asks for it).

    Args:
        tile: inputs, as in the forward pass.
        states: what the forward pass returned to keep.
        after_RIN: state after the tile.
        y_RKQHP: outputs.
        dy_RKQHP: gradient of the outputs.
        dafter_RIN: gradient of the state after the tile; None is zero.
        wants_dstart: whether the state before the tile needs a gradient.
    """
    R, K, Q, H, P = tile.x_RKQHP.shape
    B_MQN, C_MQN = tile.B_MQN, tile.C_MQN
    e_RKQH, half_RKH = _decay_factors(tile)
    w_RKQH = tile.dt_RKQH / e_RKQH
    v_MQI = (tile.x_RKQHP * w_RKQH.unsqueeze(-1)).view(R * K, Q, H * P)
    g_MQI = (dy_RKQHP * e_RKQH.unsqueeze(-1)).view(R * K, Q, H * P)
    dCB_MQQ = torch.bmm(g_MQI, v_MQI.transpose(1, 2)).tril_()
    dC_MQN = torch.bmm(dCB_MQQ, B_MQN)
    dB_MQN = torch.bmm(dCB_MQQ.transpose(1, 2), C_MQN)
    dv_MQI = torch.bmm(_masked_CB(tile).transpose(1, 2), g_MQI)
    # y_t grows with L_t and v_s falls with L_s; the state after a block grows with the block's last L.
    dL_RKQH = (dy_RKQHP * y_RKQHP).sum(-1)
    if states.scaled_RKIN is not None:
        dC_MQN.baddbmm_(g_MQI, states.scaled_RKIN.flatten(0, 1))
    dstart_RIN = None
    if K > 1 or dafter_RIN is not None or wants_dstart:
        read_RKIN = torch.bmm(g_MQI.transpose(1, 2), C_MQN).unflatten(0, (R, K))
        if dafter_RIN is not None:
            dL_RKQH[:, -1, -1] += _head_products(dafter_RIN, after_RIN, H)
        dadded_RKIN, dstart_RIN = _pass_gradients(dafter_RIN, read_RKIN, states.scaled_RKIN, half_RKH, e_RKQH, dL_RKQH)
        dB_MQN.baddbmm_(v_MQI, dadded_RKIN.flatten(0, 1))
        dv_MQI.baddbmm_(B_MQN, dadded_RKIN.flatten(0, 1).transpose(1, 2))
    dv_RKQHP = dv_MQI.view(R, K, Q, H, P)
    dw_RKQH = (dv_RKQHP * tile.x_RKQHP).sum(-1)
    ddecay_RKQH = dL_RKQH.addcmul_(dw_RKQH, w_RKQH, value=-1).flip(2).cumsum(2).flip(2)
    dx_RKQHP = dv_RKQHP.mul_(w_RKQH.unsqueeze(-1))
    return TileGrads(dx_RKQHP, dw_RKQH.div_(e_RKQH), ddecay_RKQH, dB_MQN, dC_MQN), dstart_RIN


def scale_heads(state_RIN: Tensor, factor_RH: Tensor, out: Tensor | None = None) -> Tensor:
    """Multiply each head's part of a state by its own factor."""
    heads = (factor_RH.shape[1], -1)
    target = None if out is None else out.unflatten(1, heads)
    return torch.mul(state_RIN.unflatten(1, heads), factor_RH[..., None, None], out=target).flatten(1, 2)


def _decay_factors(tile: TileInputs) -> tuple[Tensor, Tensor]:
    """Return e (R, K, Q, H) and exp(m) (R, K, H)."""
    L_RKQH = tile.decay_RKQH.cumsum(2, dtype=torch.float64)
    m_RKH = L_RKQH[:, :, -1] / 2
    dtype = tile.dt_RKQH.dtype
    return L_RKQH.sub_(m_RKH.unsqueeze(2)).exp_().to(dtype), m_RKH.exp().to(dtype)


def _masked_CB(tile: TileInputs) -> Tensor:
    return torch.bmm(tile.C_MQN, tile.B_MQN.transpose(1, 2)).tril_()


def _head_products(a_RIN: Tensor, b_RIN: Tensor, H: int) -> Tensor:
    """Return the inner product of each head's parts of two states, (R, H)."""
    return (a_RIN * b_RIN).unflatten(1, (H, -1)).flatten(2).sum(-1)


def _pass_states(start_RIN: Tensor, added_RKIN: Tensor, half_RKH: Tensor, last_RKH: Tensor) -> tuple[Tensor, Tensor]:
    """Return exp(m) S of each block (R, K, I, N), and the state after the last block."""
    scaled_RKIN = torch.empty_like(added_RKIN)
    state_RIN = start_RIN
    for block in range(added_RKIN.shape[1]):
        scale_heads(state_RIN, half_RKH[:, block], out=scaled_RKIN[:, block])
        state_RIN = scaled_RKIN[:, block] + added_RKIN[:, block]
        scale_heads(state_RIN, last_RKH[:, block], out=state_RIN)
    return scaled_RKIN, state_RIN


def _pass_gradients(
    dafter_RIN: Tensor | None,
    read_RKIN: Tensor,
    scaled_RKIN: Tensor | None,
    half_RKH: Tensor,
    e_RKQH: Tensor,
    dL_RKQH: Tensor,
) -> tuple[Tensor, Tensor]:
    """Carry the state's gradient backwards: return that of each block's added state, and of the state before the tile.

    `read_RKIN` is what a block's own outputs contribute to the gradient of its scaled start state. What the states
    between blocks contribute to the last L of the block before is added to `dL_RKQH` in place.
    """
    K, H = half_RKH.shape[1:]
    dadded_RKIN = torch.empty_like(read_RKIN)
    dstate_RIN = torch.zeros_like(read_RKIN[:, 0]) if dafter_RIN is None else dafter_RIN
    for block in range(K - 1, -1, -1):
        scale_heads(dstate_RIN, e_RKQH[:, block, -1], out=dadded_RKIN[:, block])
        dstate_RIN = dadded_RKIN[:, block] + read_RKIN[:, block]
        if block and scaled_RKIN is not None:
            dL_RKQH[:, block - 1, -1] += _head_products(dstate_RIN, scaled_RKIN[:, block], H)
        scale_heads(dstate_RIN, half_RKH[:, block], out=dstate_RIN)
    return dadded_RKIN, dstate_RIN
