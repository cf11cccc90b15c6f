"""The mixer of Mamba-1 (arXiv:2312.00752), in the layout of state-spaces/mamba.

Legend: B batch, T position, D model width, I inner channels, N state column, R rank of the step sizes, W taps.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.conv_fused import CONVOLUTIONS
from models.interface import LayerState
from models.mamba1.dims import Mamba1Dims
from models.mamba_backbone import MambaLanguageModel, draw_dt_bias, draw_uniform
from models.norms import gated_skip
from models.scans.selective import SELECTIVE_SCANS


class Mamba1Mixer(nn.Module):
    """One selective state space layer: projection, convolution, scan, gate, projection."""

    def __init__(self, dims: Mamba1Dims, kernel: str) -> None:
        super().__init__()
        self.dims = dims
        self.scan = SELECTIVE_SCANS[kernel]
        self.convolve = CONVOLUTIONS[kernel]
        inner = dims.d_inner
        self.in_proj = nn.Linear(dims.d_model, 2 * inner, bias=False)
        self.conv1d = nn.Conv1d(inner, inner, dims.d_conv, groups=inner)
        self.x_proj = nn.Linear(inner, dims.rank + 2 * dims.d_state, bias=False)
        self.dt_proj = nn.Linear(dims.rank, inner)
        self.A_log = nn.Parameter(torch.empty(inner, dims.d_state))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, dims.d_model, bias=False)

    def forward(self, u_BTD: Tensor, state: LayerState | None, reset_BT: Tensor | None) -> tuple[Tensor, LayerState]:
        """Map normalised inputs (B, T, D) to the residual update (B, T, D) and the state after the last position."""
        dims = self.dims
        h0_BIN, before_BIW = (None, None) if state is None else (state["recurrent"], state["conv"])
        x_BTI, z_BTI = self.in_proj(u_BTD).chunk(2, dim=-1)
        x_BTI, conv_BIW = self.convolve(x_BTI, self.conv1d.weight, self.conv_bias, before_BIW, reset_BT)
        dt_BTR, B_BTN, C_BTN = self.x_proj(x_BTI).split([dims.rank, dims.d_state, dims.d_state], dim=-1)
        # Decays, steps and state stay at fp32 or better: in bf16 a decay near one would round to one.
        full = torch.promote_types(u_BTD.dtype, torch.float32)
        dt_BTI = F.softplus(F.linear(dt_BTR, self.dt_proj.weight).to(full) + self.dt_proj.bias.to(full))
        A_IN = -torch.exp(self.A_log.to(full))
        y_BTI, h_BIN = self.scan(x_BTI, dt_BTI, A_IN, B_BTN, C_BTN, h0_BIN, reset_BT, chunk=dims.chunk)
        gated_BTI = gated_skip(y_BTI, x_BTI, self.D.to(full), z_BTI)
        return self.out_proj(gated_BTI), {"recurrent": h_BIN, "conv": conv_BIW}

    @property
    def conv_bias(self) -> Tensor:
        """Bias of the convolution, (I,)."""
        assert self.conv1d.bias is not None
        return self.conv1d.bias

    @torch.no_grad()
    def draw_initial_values(self, generator: torch.Generator) -> None:
        """Draw the published initial values (mamba_ssm's Mamba and MixerModel)."""
        dims = self.dims
        # 1 / sqrt(fan in) is the bound that nn.Linear and nn.Conv1d draw within by default.
        draw_uniform(self.in_proj.weight, dims.d_model**-0.5, generator)
        draw_uniform(self.conv1d.weight, dims.d_conv**-0.5, generator)
        draw_uniform(self.conv_bias, dims.d_conv**-0.5, generator)
        draw_uniform(self.x_proj.weight, dims.d_inner**-0.5, generator)
        draw_uniform(self.dt_proj.weight, dims.rank**-0.5, generator)
        draw_dt_bias(self.dt_proj.bias, dims.dt_range, generator)
        draw_uniform(self.out_proj.weight, (dims.d_inner * dims.n_layer) ** -0.5, generator)
        columns_N = torch.arange(1, dims.d_state + 1, dtype=torch.float32) * dims.a_scale
        self.A_log.copy_(columns_N.log().expand_as(self.A_log))


class Mamba1LanguageModel(MambaLanguageModel):
    """Mamba-1 language model; see RecurrentLanguageModel for states and segments.

    State parts per layer: `recurrent` (B, I, N) in fp32 (float64 if the model is), and `conv` (B, I, W - 1), the raw
    inputs of the convolution in the activations' dtype, oldest first. A given state must hold both parts.
    """

    dims: Mamba1Dims

    def __init__(self, dims: Mamba1Dims, seed: int, kernel: str = "chunked") -> None:
        """Build the model with published initial values drawn from `seed` alone, on the CPU in fp32."""
        super().__init__(dims, seed, lambda: Mamba1Mixer(dims, kernel))
