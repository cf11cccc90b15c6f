"""The causal depthwise convolution before the scan, with a state: the last raw inputs.

Shapes: B batch, T position, C channel, W taps. The state (B, C, W - 1) holds the raw inputs, before bias and SiLU, of the
W - 1 positions before the next call, oldest first, so that a piece shorter than W - 1 only shifts it.
"""

import torch
from torch import Tensor
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
        Activations (B, T, C) and the next state (B, C, W - 1), both in the dtype of x.
    """
    B, T, C = x_BTC.shape
    past = weight_C1W.shape[2] - 1
    before_BWC = x_BTC.new_zeros(B, past, C) if state_BCW is None else state_BCW.to(x_BTC.dtype).transpose(1, 2)
    padded = torch.cat([before_BWC, x_BTC], dim=1)
    if reset_BT is None:
        pre_BTC = F.conv1d(padded.transpose(1, 2), weight_C1W, bias_C, groups=C).transpose(1, 2)
        return F.silu(pre_BTC), padded[:, T:].transpose(1, 2)
    # Ordinal of the segment of each position; the positions of the carried state belong to segment 0.
    ordinal = F.pad(reset_BT.cumsum(1), (past, 0))
    pre_BTC = bias_C.expand(B, T, C)
    for tap in range(past + 1):
        same = (ordinal[:, tap : tap + T] == ordinal[:, past:]).unsqueeze(-1)
        pre_BTC = pre_BTC + padded[:, tap : tap + T] * same * weight_C1W[:, 0, tap]
    kept = padded[:, T:] * (ordinal[:, T:] == ordinal[:, -1:]).unsqueeze(-1)
    return F.silu(pre_BTC), kept.transpose(1, 2)
