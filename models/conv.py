"""The causal depthwise convolution before the scan, with a state: the last raw inputs.

Taps are shifted multiply-adds over whole rows of channels, which on CPUs is faster than a grouped convolution and needs
no transposition. The state (B, C, W - 1) holds the raw inputs, before bias and SiLU, of the W - 1 positions before the
next call, oldest first, so that a piece shorter than W - 1 only shifts it.
Legend: B batch, T position, C channel, W taps.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


def causal_conv_silu(
    x_BTC: Tensor,
    weight_C1W: Tensor,
    bias_C: Tensor,
    state_BCW: Tensor | None = None,
    reset_BT: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Convolve every channel with its own taps, then apply SiLU.

    Args:
        x_BTC: raw inputs.
        weight_C1W: taps, oldest first, laid out as `nn.Conv1d` with one group per channel has them.
        bias_C: bias.
        state_BCW: the W - 1 raw inputs before position 0; zero if None.
        reset_BT: bool; True where everything before the position counts as zero; never if None.

    Returns:
        Activations (B, T, C) and the next state (B, C, W - 1), both in the dtype of x; differentiable once.
    """
    past = weight_C1W.shape[2] - 1
    before_BWC = _inputs_before(x_BTC, state_BCW, past)
    if reset_BT is not None:
        return _with_resets(x_BTC, weight_C1W, bias_C, before_BWC, reset_BT)
    activations = _ConvSilu.apply(x_BTC, weight_C1W[:, 0], bias_C, before_BWC)
    return activations, next_state(x_BTC, state_BCW, past)


def next_state(x_BTC: Tensor, state_BCW: Tensor | None, past: int) -> Tensor:
    """Return the last `past` inputs, (B, C, past), of those before the call (zero if None) and those of the call."""
    T = x_BTC.shape[1]
    tail = torch.cat([_inputs_before(x_BTC, state_BCW, past), x_BTC[:, max(0, T - past) :]], dim=1)
    return tail[:, tail.shape[1] - past :].transpose(1, 2)


def _inputs_before(x_BTC: Tensor, state_BCW: Tensor | None, past: int) -> Tensor:
    B, _, C = x_BTC.shape
    return x_BTC.new_zeros(B, past, C) if state_BCW is None else state_BCW.to(x_BTC.dtype).transpose(1, 2)


def _with_resets(
    x_BTC: Tensor, weight_C1W: Tensor, bias_C: Tensor, before_BWC: Tensor, reset_BT: Tensor
) -> tuple[Tensor, Tensor]:
    """As `causal_conv_silu`, with taps that do not reach across a reset."""
    T, past = x_BTC.shape[1], before_BWC.shape[1]
    padded = torch.cat([before_BWC, x_BTC], dim=1)
    # Ordinal of the segment of each position; the positions of the carried state belong to segment 0.
    segment = F.pad(reset_BT.cumsum(1), (past, 0))
    pre_BTC = bias_C
    for tap in range(past + 1):
        same = (segment[:, tap : tap + T] == segment[:, past:]).unsqueeze(-1)
        pre_BTC = pre_BTC + padded[:, tap : tap + T] * same * weight_C1W[:, 0, tap]
    kept = padded[:, T:] * (segment[:, T:] == segment[:, -1:]).unsqueeze(-1)
    return F.silu(pre_BTC), kept.transpose(1, 2)


class _ConvSilu(torch.autograd.Function):
    """silu(bias + sum over lags k of weight[:, W - 1 - k] * x[t - k]), in fp32 or better inside."""

    @staticmethod
    def forward(ctx: Any, x_BTC: Tensor, weight_CW: Tensor, bias_C: Tensor, before_BWC: Tensor) -> Tensor:
        full = torch.promote_types(x_BTC.dtype, torch.float32)
        x, before, weight_WC = x_BTC.to(full), before_BWC.to(full), weight_CW.to(full).T.contiguous()
        T, past = x.shape[1], before.shape[1]
        pre_BTC = torch.addcmul(bias_C.to(full), x, weight_WC[past])
        for lag in range(1, past + 1):
            early = min(lag, T)
            pre_BTC[:, lag:].addcmul_(x[:, : T - early], weight_WC[past - lag])
            pre_BTC[:, :early].addcmul_(before[:, past - lag : past - lag + early], weight_WC[past - lag])
        ctx.save_for_backward(x_BTC, weight_CW, before_BWC, pre_BTC)
        return F.silu(pre_BTC).to(x_BTC.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BTC: Tensor) -> tuple[Tensor | None, ...]:
        x_BTC, weight_CW, before_BWC, pre_BTC = ctx.saved_tensors
        full = pre_BTC.dtype
        x, before, weight_WC = x_BTC.to(full), before_BWC.to(full), weight_CW.to(full).T.contiguous()
        T, past = x.shape[1], before.shape[1]
        dpre_BTC = torch.ops.aten.silu_backward(grad_BTC.to(full), pre_BTC)
        dx_BTC, dweight_WC, dbefore_BWC = dpre_BTC * weight_WC[past], weight_WC.new_empty(past + 1, x.shape[2]), None
        if ctx.needs_input_grad[3]:
            dbefore_BWC = torch.zeros_like(before)
        product = torch.empty_like(dpre_BTC)
        dweight_WC[past] = torch.mul(dpre_BTC, x, out=product).sum((0, 1))
        for lag in range(1, past + 1):
            tap, early = past - lag, min(lag, T)
            dx_BTC[:, : T - early].addcmul_(dpre_BTC[:, early:], weight_WC[tap])
            torch.mul(dpre_BTC[:, early:], x[:, : T - early], out=product[:, early:])
            torch.mul(dpre_BTC[:, :early], before[:, tap : tap + early], out=product[:, :early])
            dweight_WC[tap] = product.sum((0, 1))
            if dbefore_BWC is not None:
                dbefore_BWC[:, tap : tap + early].addcmul_(dpre_BTC[:, :early], weight_WC[tap])
        dbefore = None if dbefore_BWC is None else dbefore_BWC.to(before_BWC.dtype)
        dbias_C = dpre_BTC.sum((0, 1)).to(weight_CW.dtype)
        return dx_BTC.to(x_BTC.dtype), dweight_WC.T.to(weight_CW.dtype), dbias_C, dbefore
