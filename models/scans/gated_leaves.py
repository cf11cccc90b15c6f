"""Leaves of the chunked gated scan: what happens inside short runs of positions, and its gradients by hand.

A leaf starts from no state; what passes between leaves is the matter of `models.scans.gated_tree`, which is given

    reads   q_t exp(G_t)  (GLA)  or  q_t exp(G_{t-1})  (RWKV-6)
    writes  k_s exp(G_last - G_s)
    total   exp(G_last)

with G_t the log-decay summed from the leaf's start through t: factors of at most one. In a leaf of several positions
the weight of value s in output t is the product of q_t exp(G_t - m) and k_s exp(m - G_s), m half of G_last, so that no
decay per pair of positions is formed; G is summed in float64. A leaf of one position has no such product: it is exact
at any decay, and a reset makes its total zero.

Legend: N items (blocks x rows x heads), Q positions per block, M leaves (N * Q / F), F positions per leaf, K key
channel, V value channel, H head.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TileInputs:
    """What a tile reads, in the dtype of the state, contiguous."""

    q_NQK: Tensor
    k_NQK: Tensor
    v_NQV: Tensor
    g_NQK: Tensor
    kept_NQ: Tensor | None
    """Zero where the state is reset before the position, else one; needs leaves of one position."""
    bonus_HK: Tensor | None
    leaf: int
    """Positions per leaf; divides Q by a power of two."""


@dataclass(frozen=True)
class TileGrads:
    """Gradients of a tile's inputs."""

    q_NQK: Tensor
    k_NQK: Tensor
    v_NQV: Tensor
    g_NQK: Tensor
    bonus_HK: Tensor | None


@dataclass(frozen=True)
class Leaves:
    """Factors of the leaves of a tile. The tree decays `reads` and `writes` further in place."""

    reads_MFK: Tensor
    writes_MFK: Tensor
    total_MK: Tensor
    centred: "Centred | None"
    """None in leaves of one position."""


@dataclass(frozen=True)
class Centred:
    """Queries and keys with their decays measured from the middle m of a leaf's log-decay."""

    q_factor_MFK: Tensor
    k_factor_MFK: Tensor
    q_MFK: Tensor
    k_MFK: Tensor
    half_M1K: Tensor
    """exp(m)."""


def open_leaves(tile: TileInputs) -> Leaves:
    """Return the factors of a tile's leaves."""
    if tile.leaf > 1:
        return _centred_leaves(tile)
    K = tile.g_NQK.shape[2]
    total_NQK = _total(tile)
    reads_NQK = tile.q_NQK * _read_factor(tile, total_NQK)
    return Leaves(reads_NQK.view(-1, 1, K), tile.k_NQK.clone().view(-1, 1, K), total_NQK.view(-1, K), None)


def leaf_outputs(tile: TileInputs, leaves: Leaves) -> Tensor:
    """Return what the positions of each leaf read from one another and from themselves, (N, Q, V), before the scale."""
    if leaves.centred is None:
        return tile.v_NQV * _own_weights(tile).unsqueeze(2)
    values_MFV = tile.v_NQV.view(-1, tile.leaf, tile.v_NQV.shape[2])
    return torch.bmm(_weights(tile, leaves.centred), values_MFV).view_as(tile.v_NQV)


def leaf_gradients(
    tile: TileInputs,
    leaves: Leaves,
    do_NQV: Tensor,
    dv_NQV: Tensor,
    dreads_NQK: Tensor,
    dwrites_NQK: Tensor,
    dlog_total_MK: Tensor,
) -> TileGrads:
    """Return the gradients of a tile's inputs.

    Args:
        tile: inputs, as in the forward pass.
        leaves: what `open_leaves` returned.
        do_NQV: gradient of the outputs before the scale.
        dv_NQV: gradient of the values through what passes between leaves; changed in place.
        dreads_NQK: gradient of the reads; changed in place.
        dwrites_NQK: gradient of the writes; changed in place.
        dlog_total_MK: gradient of the logarithm of the totals.
    """
    if leaves.centred is None:
        return _single_gradients(tile, leaves, do_NQV, dv_NQV, dreads_NQK, dwrites_NQK, dlog_total_MK)
    return _centred_gradients(tile, leaves.centred, do_NQV, dv_NQV, dreads_NQK, dwrites_NQK, dlog_total_MK)


def _total(tile: TileInputs) -> Tensor:
    total_NQK = tile.g_NQK.exp()
    return total_NQK if tile.kept_NQ is None else total_NQK.mul_(tile.kept_NQ.unsqueeze(2))


def _read_factor(tile: TileInputs, total_NQK: Tensor) -> Tensor:
    """Return what a query's reads are decayed by in a leaf of one position, (N, Q, K) or (N, Q, 1)."""
    if tile.bonus_HK is None:
        return total_NQK
    return total_NQK.new_ones(()) if tile.kept_NQ is None else tile.kept_NQ.unsqueeze(2)


def _times_bonus(tile: TileInputs, v_NQK: Tensor) -> Tensor:
    if tile.bonus_HK is None:
        return v_NQK
    return (v_NQK.view(-1, *tile.bonus_HK.shape[:1], *v_NQK.shape[1:]) * tile.bonus_HK.unsqueeze(1)).view_as(v_NQK)


def _own_weights(tile: TileInputs) -> Tensor:
    """Return the weight of each position's own value in its output, (N, Q)."""
    return (_times_bonus(tile, tile.q_NQK) * tile.k_NQK).sum(2)


def _own_gradients(tile: TileInputs, down_NQ: Tensor, dq_NQK: Tensor, dk_NQK: Tensor) -> Tensor | None:
    """Add the gradients of the own weights' factors to `dq_NQK` and `dk_NQK`; return that of the bonus."""
    dq_NQK.addcmul_(_times_bonus(tile, tile.k_NQK), down_NQ.unsqueeze(2))
    dkey_NQK = tile.q_NQK * down_NQ.unsqueeze(2)
    dk_NQK.add_(_times_bonus(tile, dkey_NQK))
    if tile.bonus_HK is None:
        return None
    return (dkey_NQK * tile.k_NQK).sum(1).view(-1, *tile.bonus_HK.shape).sum(0)


def _single_gradients(
    tile: TileInputs,
    leaves: Leaves,
    do_NQV: Tensor,
    dv_NQV: Tensor,
    dreads_NQK: Tensor,
    dwrites_NQK: Tensor,
    dlog_total_MK: Tensor,
) -> TileGrads:
    dq_NQK = dreads_NQK.mul_(_read_factor(tile, leaves.total_MK.view_as(tile.g_NQK)))
    dg_NQK = dlog_total_MK.view_as(tile.g_NQK)
    if tile.bonus_HK is None:
        dg_NQK = dg_NQK.addcmul(dq_NQK, tile.q_NQK)
    dv_NQV.addcmul_(do_NQV, _own_weights(tile).unsqueeze(2))
    dbonus_HK = _own_gradients(tile, (do_NQV * tile.v_NQV).sum(2), dq_NQK, dwrites_NQK)
    return TileGrads(dq_NQK, dwrites_NQK, dv_NQV, dg_NQK, dbonus_HK)


def _centred_leaves(tile: TileInputs) -> Leaves:
    """Return the factors of leaves of several positions, whose decays must stay above exp(-MAX_LOG_DECAY)."""
    K, full = tile.g_NQK.shape[2], tile.g_NQK.dtype
    G_MFK = tile.g_NQK.view(-1, tile.leaf, K).cumsum(1, dtype=torch.float64)
    e_MFK = G_MFK.sub_(G_MFK[:, -1:] / 2).to(full).exp_()
    half_M1K = e_MFK[:, -1:].clone()
    k_factor_MFK = e_MFK.reciprocal()
    if tile.bonus_HK is not None:
        # exp(G_{t-1} - m): one position earlier, and exp(-m) at the leaf's start.
        e_MFK = torch.cat([half_M1K.reciprocal(), e_MFK[:, :-1]], dim=1)
    q_MFK, k_MFK = tile.q_NQK.view_as(e_MFK) * e_MFK, tile.k_NQK.view_as(e_MFK) * k_factor_MFK
    centred = Centred(e_MFK, k_factor_MFK, q_MFK, k_MFK, half_M1K)
    return Leaves(q_MFK * half_M1K, k_MFK * half_M1K, half_M1K.square().squeeze(1), centred)


def _weights(tile: TileInputs, centred: Centred) -> Tensor:
    """Return the weight of each value of a leaf in each of its outputs, (M, F, F)."""
    weights_MFF = torch.bmm(centred.q_MFK, centred.k_MFK.transpose(1, 2))
    if tile.bonus_HK is None:
        return weights_MFF.tril_()
    weights_MFF.tril_(-1).diagonal(dim1=1, dim2=2).copy_(_own_weights(tile).view(-1, tile.leaf))
    return weights_MFF


def _centred_gradients(
    tile: TileInputs,
    centred: Centred,
    do_NQV: Tensor,
    dv_NQV: Tensor,
    dreads_NQK: Tensor,
    dwrites_NQK: Tensor,
    dlog_total_MK: Tensor,
) -> TileGrads:
    K, V, F = tile.q_NQK.shape[2], tile.v_NQV.shape[2], tile.leaf
    do_MFV, values_MFV = do_NQV.view(-1, F, V), tile.v_NQV.view(-1, F, V)
    dv_NQV.view(-1, F, V).baddbmm_(_weights(tile, centred).transpose(1, 2), do_MFV)
    down_MFF = torch.bmm(do_MFV, values_MFV.transpose(1, 2))
    own_NQ = None if tile.bonus_HK is None else down_MFF.diagonal(dim1=1, dim2=2).clone().view(tile.q_NQK.shape[:2])
    down_MFF.tril_(0 if own_NQ is None else -1)
    dq_MFK = dreads_NQK.view(-1, F, K).mul_(centred.half_M1K).baddbmm_(down_MFF, centred.k_MFK)
    dk_MFK = dwrites_NQK.view(-1, F, K).mul_(centred.half_M1K)
    dlast_MK = (dk_MFK * centred.k_MFK).sum(1).add_(dlog_total_MK)
    dk_MFK.baddbmm_(down_MFF.transpose(1, 2), centred.q_MFK)
    # A read grows with G_t (or G_{t-1}), a write falls with G_s, and both reach beyond the leaf through G_last.
    grown_MFK, fallen_MFK = dq_MFK * centred.q_MFK, dk_MFK * centred.k_MFK
    if own_NQ is None:
        dG_MFK = grown_MFK.sub_(fallen_MFK)
    else:
        dG_MFK = fallen_MFK.neg_()
        dG_MFK[:, :-1].add_(grown_MFK[:, 1:])
    dG_MFK[:, -1].add_(dlast_MK)
    dg_MFK = torch.matmul(torch.ones(F, F, dtype=dG_MFK.dtype, device=dG_MFK.device).triu_(), dG_MFK)
    dq_NQK = dq_MFK.mul_(centred.q_factor_MFK).view_as(tile.q_NQK)
    dk_NQK = dk_MFK.mul_(centred.k_factor_MFK).view_as(tile.k_NQK)
    dbonus_HK = None if own_NQ is None else _own_gradients(tile, own_NQ, dq_NQK, dk_NQK)
    return TileGrads(dq_NQK, dk_NQK, dv_NQV, dg_MFK.view(-1, tile.q_NQK.shape[1], K), dbonus_HK)
