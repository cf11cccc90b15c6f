"""Next-token cross-entropy that never holds the logits of all positions at once.

Logits are formed for `chunk_tokens` positions at a time; where a gradient is wanted it is formed in the same pass, so
nothing of size tokens x vocabulary outlives its chunk. Legend: B batch, T position, D width, V vocabulary, K chunk.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from models.interface import RecurrentLanguageModel

LOGITS_PER_CHUNK = 2**22
"""Default bound on the logits held at once: 16 MiB in fp32."""


def cross_entropy_sum(
    hidden_BTD: Tensor,
    targets_BT: Tensor,
    head: RecurrentLanguageModel | Tensor,
    ignore_index: int = -100,
    chunk_tokens: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the summed negative log-likelihood of the targets, and how many were counted.

    Args:
        hidden_BTD: hidden vectors of a model, any float dtype.
        targets_BT: int64 next tokens; `ignore_index` where nothing is to be predicted.
        head: the model, or its output matrix (V, D).
        ignore_index: target that is neither scored nor counted.
        chunk_tokens: positions whose logits are held at once; by default at most 4M logits are.

    Returns:
        Sum in nats, scalar, fp32 (float64 for float64 inputs), accumulated in float64 and differentiable once in
        hidden and head; count, int64 scalar on the same device.
    """
    weight_VD, hidden_ND, targets_N = _flatten(hidden_BTD, targets_BT, head)
    size = chunk_tokens or _chunk_tokens(weight_VD)
    total = _SummedCrossEntropy.apply(hidden_ND, weight_VD, targets_N, ignore_index, size)
    return total, (targets_N != ignore_index).sum()


@torch.no_grad()
def token_nll(
    hidden_BTD: Tensor,
    targets_BT: Tensor,
    head: RecurrentLanguageModel | Tensor,
    ignore_index: int = -100,
    chunk_tokens: int | None = None,
) -> Tensor:
    """Return each target's negative log-likelihood in nats, (B, T), fp32, without gradient; 0 where it is ignored."""
    weight_VD, hidden_ND, targets_N = _flatten(hidden_BTD, targets_BT, head)
    size = chunk_tokens or _chunk_tokens(weight_VD)
    pieces = [
        _chunk_nll(_logits(hidden_KD, weight_VD), targets_K, ignore_index)[0]
        for hidden_KD, targets_K in zip(hidden_ND.split(size), targets_N.split(size), strict=True)
    ]
    return torch.cat(pieces).view(targets_BT.shape).float()


def _flatten(hidden: Tensor, targets: Tensor, head: RecurrentLanguageModel | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    weight = head if isinstance(head, Tensor) else head.head_weight()
    return weight, hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)


def _chunk_tokens(weight_VD: Tensor) -> int:
    return max(1, LOGITS_PER_CHUNK // weight_VD.shape[0])


def _logits(hidden_KD: Tensor, weight_VD: Tensor) -> Tensor:
    """Logits (K, V) in fp32 or better; the product itself runs in the weight's dtype."""
    logits = hidden_KD.to(weight_VD.dtype) @ weight_VD.T
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _chunk_nll(logits_KV: Tensor, targets_K: Tensor, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the nll of each target (0 where ignored), the log-normalisers (K, 1) and the targets made safe (K, 1)."""
    counted_K = targets_K != ignore_index
    safe_K1 = targets_K.where(counted_K, 0)[:, None]
    norm_K1 = torch.logsumexp(logits_KV, dim=1, keepdim=True)
    nll_K = (norm_K1 - logits_KV.gather(1, safe_K1))[:, 0]
    return nll_K.where(counted_K, 0.0), norm_K1, safe_K1


class _SummedCrossEntropy(torch.autograd.Function):
    """Sum of nll over tokens; its gradients are formed in the forward pass and scaled in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, ignore_index: int, chunk_tokens: int
    ) -> Tensor:
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        d_hidden = torch.empty_like(hidden_ND) if wants_hidden else None
        full = torch.promote_types(weight_VD.dtype, torch.float32)
        d_weight = torch.zeros_like(weight_VD, dtype=full) if wants_weight else None
        total = hidden_ND.new_zeros((), dtype=torch.float64)
        for start in range(0, hidden_ND.shape[0], chunk_tokens):
            piece = slice(start, start + chunk_tokens)
            logits_KV = _logits(hidden_ND[piece], weight_VD)
            nll_K, norm_K1, safe_K1 = _chunk_nll(logits_KV, targets_N[piece], ignore_index)
            total += nll_K.sum(dtype=torch.float64)
            if not (wants_hidden or wants_weight):
                continue
            # d nll / d logits = softmax - onehot, zero in ignored rows.
            d_logits = logits_KV.sub_(norm_K1).exp_()
            d_logits.scatter_add_(1, safe_K1, torch.full_like(norm_K1, -1.0))
            d_logits.mul_((targets_N[piece] != ignore_index)[:, None])
            if d_hidden is not None:
                d_hidden[piece] = d_logits.to(weight_VD.dtype) @ weight_VD
            if d_weight is not None:
                d_weight += d_logits.to(weight_VD.dtype).T @ hidden_ND[piece].to(weight_VD.dtype)
        ctx.save_for_backward(d_hidden, d_weight)
        ctx.weight_dtype = weight_VD.dtype
        return total.to(torch.promote_types(hidden_ND.dtype, torch.float32))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden, d_weight = ctx.saved_tensors
        hidden = None if d_hidden is None else d_hidden * grad.to(d_hidden.dtype)
        weight = None if d_weight is None else (d_weight * grad.to(d_weight.dtype)).to(ctx.weight_dtype)
        return hidden, weight, None, None, None
