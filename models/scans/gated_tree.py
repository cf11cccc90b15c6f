"""One tile of the chunked gated scan: leaves joined pairwise into blocks, blocks by a state; gradients by hand.

Two neighbouring runs of s positions join into one of 2 s. The right one's reads see the left one's writes; then the
right reads are decayed by the left total, the left writes by the right total, and the totals multiply. All factors are
at most one, so that the join is exact at any decay, and where a total is zero because of a reset. A whole block reads
the state before it, S, and leaves total S + writes^T values. The gradient of a decay is summed from what crosses
that decay alone: nothing large cancels.

Legend: see `models.scans.gated_leaves`; N = L * I items, L blocks, I rows x heads, of shape (Q, ...) each; J joins of
a level.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from models.scans.gated_leaves import Leaves, TileGrads, TileInputs, leaf_gradients, leaf_outputs, open_leaves


@dataclass(frozen=True)
class Join:
    """The factors that one level of the tree used."""

    reads_JSK: Tensor
    """Of the right runs, not yet decayed by the left."""
    writes_JSK: Tensor
    """Of the left runs, not yet decayed by the right."""
    left_J1K: Tensor
    """Totals of the left runs."""
    right_J1K: Tensor


def forward_tile(tile: TileInputs, start_IKV: Tensor, states_LIKV: Tensor) -> tuple[Tensor, Tensor]:
    """Write the state before each block to `states_LIKV`; return the outputs (N, Q, V) and the state after the tile.

    Args:
        tile: inputs; blocks are the slowest part of an item's index.
        start_IKV: state before the tile.
        states_LIKV: written to.
    """
    leaves = open_leaves(tile)
    o_NQV = leaf_outputs(tile, leaves)
    blocks, joins = _join_leaves(tile, leaves)
    for join in joins:
        weights_JSS = torch.bmm(join.reads_JSK, join.writes_JSK.transpose(1, 2))
        _right(o_NQV, join).add_(_product(weights_JSS, _left(tile.v_NQV, join)))
    added_LIKV = torch.bmm(blocks.writes_MFK.transpose(1, 2), tile.v_NQV).view_as(states_LIKV)
    total_LIK1 = blocks.total_MK.view(*states_LIKV.shape[:3], 1)
    state_IKV = start_IKV
    for state, added, total in zip(states_LIKV.unbind(0), added_LIKV.unbind(0), total_LIK1.unbind(0), strict=True):
        state.copy_(state_IKV)
        state_IKV = torch.addcmul(added, total, state)
    return o_NQV.baddbmm_(blocks.reads_MFK, states_LIKV.flatten(0, 1)), state_IKV


def backward_tile(
    tile: TileInputs, states_LIKV: Tensor, do_NQV: Tensor, dafter_IKV: Tensor
) -> tuple[TileGrads, Tensor]:
    """Return the gradients of a tile's inputs, and of the state before it.

    Args:
        tile: inputs, as in the forward pass.
        states_LIKV: state before each block.
        do_NQV: gradient of the outputs.
        dafter_IKV: gradient of the state after the tile.
    """
    leaves = open_leaves(tile)
    blocks, joins = _join_leaves(tile, leaves)
    dafter_LIKV, dstart_IKV = _pass_gradients(blocks, states_LIKV, do_NQV, dafter_IKV)
    dafter_NKV, states_NKV = dafter_LIKV.flatten(0, 1), states_LIKV.flatten(0, 1)
    dreads_NQK = torch.bmm(do_NQV, states_NKV.transpose(1, 2))
    dwrites_NQK = torch.bmm(tile.v_NQV, dafter_NKV.transpose(1, 2))
    dv_NQV = torch.bmm(blocks.writes_MFK, dafter_NKV)
    dlog_total_MK = (dafter_NKV * states_NKV).sum(2).mul_(blocks.total_MK)
    for join in reversed(joins):
        dlog_total_MK = _part_runs(tile, join, do_NQV, dv_NQV, dreads_NQK, dwrites_NQK, dlog_total_MK)
    return leaf_gradients(tile, leaves, do_NQV, dv_NQV, dreads_NQK, dwrites_NQK, dlog_total_MK), dstart_IKV


def _product(a_JSS: Tensor, b_JSC: Tensor) -> Tensor:
    # For single positions a product over a dimension of one is left to broadcasting, which is faster.
    return a_JSS * b_JSC if a_JSS.shape[2] == 1 else torch.bmm(a_JSS, b_JSC)


def _left(v_NQC: Tensor, join: Join) -> Tensor:
    return v_NQC.view(-1, 2, join.reads_JSK.shape[1], v_NQC.shape[2])[:, 0]


def _right(v_NQC: Tensor, join: Join) -> Tensor:
    return v_NQC.view(-1, 2, join.reads_JSK.shape[1], v_NQC.shape[2])[:, 1]


def _join_leaves(tile: TileInputs, leaves: Leaves) -> tuple[Leaves, list[Join]]:
    """Return the factors of whole blocks, as of leaves that span a block, and those of each level of the tree."""
    Q, K = tile.q_NQK.shape[1:]
    reads_MFK, writes_MFK, total_MK = leaves.reads_MFK, leaves.writes_MFK, leaves.total_MK
    joins, size = [], tile.leaf
    while size < Q:
        left_J1K, right_J1K = total_MK.view(-1, 2, 1, K).unbind(1)
        reads_JSK, writes_JSK = reads_MFK.view(-1, 2, size, K)[:, 1], writes_MFK.view(-1, 2, size, K)[:, 0]
        joins.append(Join(reads_JSK.clone(), writes_JSK.clone(), left_J1K, right_J1K))
        reads_JSK.mul_(left_J1K)
        writes_JSK.mul_(right_J1K)
        total_MK = (left_J1K * right_J1K).squeeze(1)
        size *= 2
    return Leaves(reads_MFK.view(-1, Q, K), writes_MFK.view(-1, Q, K), total_MK, None), joins


def _pass_gradients(blocks: Leaves, states_LIKV: Tensor, do_NQV: Tensor, dafter_IKV: Tensor) -> tuple[Tensor, Tensor]:
    """Carry the state's gradient backwards: return that of the state after each block, and before the tile."""
    read_LIKV = torch.bmm(blocks.reads_MFK.transpose(1, 2), do_NQV).view_as(states_LIKV)
    total_LIK1 = blocks.total_MK.view(*states_LIKV.shape[:3], 1)
    dafter_LIKV = torch.empty_like(states_LIKV)
    dstate_IKV = dafter_IKV
    for block in range(len(states_LIKV) - 1, -1, -1):
        dafter_LIKV[block] = dstate_IKV
        dstate_IKV = torch.addcmul(read_LIKV[block], total_LIK1[block], dstate_IKV)
    return dafter_LIKV, dstate_IKV


def _part_runs(
    tile: TileInputs,
    join: Join,
    do_NQV: Tensor,
    dv_NQV: Tensor,
    dreads_NQK: Tensor,
    dwrites_NQK: Tensor,
    dlog_total_MK: Tensor,
) -> Tensor:
    """Turn gradients at the upper end of a join to those at its lower end, in place; return that of the log-totals."""
    do_JSV, values_JSV = _right(do_NQV, join), _left(tile.v_NQV, join)
    dreads_JSK = _right(dreads_NQK, join).mul_(join.left_J1K)
    dwrites_JSK = _left(dwrites_NQK, join).mul_(join.right_J1K)
    dlog_left_JK = (dreads_JSK * join.reads_JSK).sum(1).add_(dlog_total_MK)
    dlog_right_JK = (dwrites_JSK * join.writes_JSK).sum(1).add_(dlog_total_MK)
    weights_JSS = torch.bmm(join.reads_JSK, join.writes_JSK.transpose(1, 2))
    down_JSS = torch.bmm(do_JSV, values_JSV.transpose(1, 2))
    dreads_JSK.add_(_product(down_JSS, join.writes_JSK))
    dwrites_JSK.add_(_product(down_JSS.transpose(1, 2), join.reads_JSK))
    _left(dv_NQV, join).add_(_product(weights_JSS.transpose(1, 2), do_JSV))
    return torch.stack([dlog_left_JK, dlog_right_JK], dim=1).flatten(0, 1)
