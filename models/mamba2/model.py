"""The mixer of Mamba-2 (arXiv:2405.21060), in the layout of state-spaces/mamba2.

Legend: B batch, T position, D model width, H head, P head channel, I = H * P inner channels, G group, N state column,
W taps.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.conv_fused import CONVOLUTIONS
from models.interface import LayerState
from models.kernels import FUSED
from models.mamba2.dims import Mamba2Dims
from models.mamba_backbone import MambaLanguageModel, draw_dt_bias, draw_uniform
from models.norms import RMSNorm, gated_readout
from models.norms_fused import gated_readout_fused
from models.scans.ssd import SSD_SCANS
from models.scans.ssd_fused import CHUNK, ssd_fused


class Mamba2Mixer(nn.Module):
    """One selective state space layer: projection, convolution, scan, gated norm, projection."""

    def __init__(self, dims: Mamba2Dims, kernel: str) -> None:
        super().__init__()
        self.dims = dims
        self.scan = SSD_SCANS[kernel]
        self.fused = kernel == FUSED
        self.chunk = CHUNK if self.fused else dims.chunk
        self.convolve = CONVOLUTIONS[kernel]
        self.in_proj = nn.Linear(dims.d_model, dims.in_proj_rows, bias=False)
        self.conv1d = nn.Conv1d(dims.conv_channels, dims.conv_channels, dims.d_conv, groups=dims.conv_channels)
        self.dt_bias = nn.Parameter(torch.empty(dims.n_heads))
        self.A_log = nn.Parameter(torch.empty(dims.n_heads))
        self.D = nn.Parameter(torch.ones(dims.n_heads))
        self.norm = RMSNorm(dims.d_inner, dims.norm_eps)
        self.out_proj = nn.Linear(dims.d_inner, dims.d_model, bias=False)

    def forward(self, u_BTD: Tensor, state: LayerState | None, reset_BT: Tensor | None) -> tuple[Tensor, LayerState]:
        """Map normalised inputs (B, T, D) to the residual update (B, T, D) and the state after the last position."""
        dims = self.dims
        h0_BHPN, before_BCW = (None, None) if state is None else (state["recurrent"], state["conv"])
        z_BTI, xBC_BTC, dt_BTH = self.in_proj(u_BTD).split([dims.d_inner, dims.conv_channels, dims.n_heads], dim=-1)
        xBC_BTC, conv_BCW = self.convolve(xBC_BTC, self.conv1d.weight, self.conv_bias, before_BCW, reset_BT)
        x_BTHP, B_BTGN, C_BTGN = self._split_heads(xBC_BTC)
        # Decays, steps and state stay at fp32 or better: in bf16 a decay near one would round to one.
        full = torch.promote_types(u_BTD.dtype, torch.float32)
        dt_BTH = F.softplus(dt_BTH.to(full) + self.dt_bias.to(full))
        A_H = -torch.exp(self.A_log.to(full))
        series = (x_BTHP, dt_BTH, A_H, B_BTGN, C_BTGN, h0_BHPN, reset_BT)
        D_H, norm = self.D.to(full), (self.norm.weight, dims.norm_eps, dims.ngroups)
        if self.fused:
            # The kernel adds the skip D x itself.
            v_BTHP, h_BHPN = ssd_fused(*series, chunk=self.chunk, D_H=D_H)
            gated_BTI = gated_readout_fused(v_BTHP.flatten(2), z_BTI, *norm)
        else:
            y_BTHP, h_BHPN = self.scan(*series, chunk=self.chunk)
            gated_BTI = gated_readout(y_BTHP, x_BTHP, D_H, z_BTI, *norm)
        return self.out_proj(gated_BTI), {"recurrent": h_BHPN, "conv": conv_BCW}

    @property
    def conv_bias(self) -> Tensor:
        """Bias of the convolution, (I + 2 G N)."""
        assert self.conv1d.bias is not None
        return self.conv1d.bias

    def _split_heads(self, xBC_BTC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dims = self.dims
        columns = dims.ngroups * dims.d_state
        x, b, c = xBC_BTC.split([dims.d_inner, columns, columns], dim=-1)
        groups = (dims.ngroups, dims.d_state)
        return x.unflatten(-1, (dims.n_heads, dims.headdim)), b.unflatten(-1, groups), c.unflatten(-1, groups)

    @torch.no_grad()
    def draw_initial_values(self, generator: torch.Generator) -> None:
        """Draw the published initial values (mamba_ssm's Mamba2 and MixerModel)."""
        dims = self.dims
        # 1 / sqrt(fan in) is the bound that nn.Linear and nn.Conv1d draw within by default.
        draw_uniform(self.in_proj.weight, dims.d_model**-0.5, generator)
        draw_uniform(self.conv1d.weight, dims.d_conv**-0.5, generator)
        draw_uniform(self.conv_bias, dims.d_conv**-0.5, generator)
        draw_uniform(self.out_proj.weight, (dims.d_inner * dims.n_layer) ** -0.5, generator)
        draw_dt_bias(self.dt_bias, dims.dt_range, generator)
        self.A_log.uniform_(*dims.a_init_range, generator=generator).log_()


class Mamba2LanguageModel(MambaLanguageModel):
    """Mamba-2 language model; see RecurrentLanguageModel for states and segments.

    State parts per layer: `recurrent` (B, H, P, N) in fp32 (float64 if the model is), and `conv` (B, I + 2 G N, W - 1),
    the raw inputs of the convolution in the activations' dtype, oldest first. A given state must hold both parts.
    """

    dims: Mamba2Dims

    def __init__(self, dims: Mamba2Dims, seed: int, kernel: str = "chunked") -> None:
        """Build the model with published initial values drawn from `seed` alone, on the CPU in fp32."""
        super().__init__(dims, seed, lambda: Mamba2Mixer(dims, kernel))
