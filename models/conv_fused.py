"""The causal convolution by the CUDA kernel of causal-conv1d; see models.conv.

The kernel wants channels last, in steps of eight, and 2 to 4 taps.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from models.conv import causal_conv_silu, next_state
from models.errors import ModelError
from models.scans.fused import check_call, check_size, library

STEP = 8
"""The kernel reads so many channels at once: strides are multiples of it."""
TAPS = (2, 3, 4)
CausalConv = Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor | None], tuple[Tensor, Tensor]]


def causal_conv_silu_fused(
    x_BTC: Tensor,
    weight_C1W: Tensor,
    bias_C: Tensor,
    state_BCW: Tensor | None = None,
    reset_BT: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Convolve every channel with its own taps, then apply SiLU; see `causal_conv_silu`.

    With resets it is that one: the kernel takes either segments or a state.

    Raises:
        ModelError: without causal-conv1d, off a GPU, for dtypes, channels or taps that the kernel does not know, or for
            too many tokens.
    """
    if reset_BT is not None:
        return causal_conv_silu(x_BTC, weight_C1W, bias_C, state_BCW, reset_BT)
    B, T, C = x_BTC.shape
    check_call("the convolution", x_BTC, triton=False)
    check_size("the convolution", B, T, {"inputs": B * T * C})
    if C % STEP or weight_C1W.shape[2] not in TAPS:
        raise ModelError(
            f"causal-conv1d takes multiples of {STEP} channels and 2 to 4 taps, not {C} channels and "
            f"{weight_C1W.shape[2]} taps: write model.kernel=chunked."
        )
    convolve = library("causal_conv1d", "causal_conv1d_fn")
    before_BCW = None if state_BCW is None else _channels_last(state_BCW.to(x_BTC.dtype).transpose(1, 2))
    weight_CW, bias_C = weight_C1W[:, 0].to(x_BTC.dtype), bias_C.to(x_BTC.dtype)
    with torch.autocast(x_BTC.device.type, enabled=False):
        y_BCT = convolve(_channels_last(x_BTC), weight_CW, bias_C, initial_states=before_BCW, activation="silu")
    # The next state is a copy of inputs: no need to ask the kernel, which knows it only for some layouts.
    return y_BCT.transpose(1, 2), next_state(x_BTC, state_BCW, weight_C1W.shape[2] - 1)


def _channels_last(v_BTC: Tensor) -> Tensor:
    """The same numbers as (B, C, T), laid out as the kernel reads them."""
    fits = v_BTC.stride(2) == 1 and not any(stride % STEP for stride in v_BTC.stride()[:2])
    aligned = v_BTC.storage_offset() % STEP == 0
    return (v_BTC if fits and aligned else v_BTC.contiguous()).transpose(1, 2)


CONVOLUTIONS: dict[str, CausalConv] = {
    "chunked": causal_conv_silu,
    "fused": causal_conv_silu_fused,
    "naive": causal_conv_silu,
}
"""The convolution that goes with each form of the scan."""
