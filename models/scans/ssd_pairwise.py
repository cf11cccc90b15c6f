"""One block of the chunked scan with a decay for every pair of positions: right for any decay and reset, but slower.

Plain differentiable torch code; the chunked scan runs it again in its backward pass. Legend: R rows, Q positions,
H head, P head channel, I = H * P, N state column.
"""

import torch
from torch import Tensor


def pairwise_block(
    x_RQHP: Tensor,
    dt_RQH: Tensor,
    decay_RQH: Tensor,
    B_RQN: Tensor,
    C_RQN: Tensor,
    start_RIN: Tensor,
    *,
    reset_RQ: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return the outputs (R, Q, H, P) of one block and the state after it (R, I, N).

    Args:
        x_RQHP: inputs, in the dtype of the state like all others.
        dt_RQH: step sizes.
        decay_RQH: log-decays dt * A.
        B_RQN: input vectors.
        C_RQN: output vectors.
        start_RIN: state before the block.
        reset_RQ: positions before which the state is zeroed, or None.
    """
    R, Q, H, P = x_RQHP.shape
    L_RHQ = decay_RQH.cumsum(1, dtype=torch.float64).transpose(1, 2)
    linked_RQQ, from_start_RQ, to_end_RQ = _links(reset_RQ, R, Q, x_RQHP.device)
    # Where two positions are not linked the difference may be positive: it is masked before the exponential.
    gap_RHQQ = (L_RHQ.unsqueeze(3) - L_RHQ.unsqueeze(2)).masked_fill(~linked_RQQ.unsqueeze(1), float("-inf"))
    v_RHQP = (x_RQHP * dt_RQH.unsqueeze(-1)).transpose(1, 2)
    CB_RQQ = torch.bmm(C_RQN, B_RQN.transpose(1, 2))
    y_RHQP = (CB_RQQ.unsqueeze(1) * torch.exp(gap_RHQQ).to(CB_RQQ.dtype)) @ v_RHQP
    to_end_RHQ = torch.exp(L_RHQ[..., -1:] - L_RHQ).to(v_RHQP.dtype) * to_end_RQ.unsqueeze(1)
    v_RQI = (v_RHQP * to_end_RHQ.unsqueeze(-1)).transpose(1, 2).reshape(R, Q, H * P)
    after_RIN = torch.bmm(v_RQI.transpose(1, 2), B_RQN)
    e_RHQ = torch.exp(L_RHQ).to(v_RHQP.dtype) * from_start_RQ.unsqueeze(1)
    read_RQHP = torch.bmm(C_RQN, start_RIN.transpose(1, 2)).view(R, Q, H, P)
    y_RHQP = y_RHQP + read_RQHP.transpose(1, 2) * e_RHQ.unsqueeze(-1)
    after_RIN = after_RIN + (start_RIN.view(R, H, -1) * e_RHQ[..., -1:]).view_as(start_RIN)
    return y_RHQP.transpose(1, 2), after_RIN


def _links(reset_RQ: Tensor | None, R: int, Q: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return which position reaches which (R, Q, Q), which sees the start state, and which reaches the end (R, Q)."""
    causal_QQ = torch.ones(Q, Q, dtype=torch.bool, device=device).tril()
    if reset_RQ is None:
        everywhere = torch.ones(R, Q, dtype=torch.bool, device=device)
        return causal_QQ.expand(R, Q, Q), everywhere, everywhere
    segment_RQ = reset_RQ.cumsum(1)
    linked_RQQ = causal_QQ & (segment_RQ.unsqueeze(2) == segment_RQ.unsqueeze(1))
    return linked_RQQ, segment_RQ == 0, segment_RQ == segment_RQ[:, -1:]
