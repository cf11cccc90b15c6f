"""Mamba-2 (arXiv:2405.21060) with a state that can be given, carried and taken, in the layout of state-spaces/mamba2.

Names and shapes of parameters are those of the published checkpoints, with the head tied to the embedding. Legend:
B batch, T position, D model width, H head, P head channel, I = H * P inner channels, G group, N state column, W taps.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.conv import causal_conv_silu
from models.interface import LayerState, PartSpec, RecurrentLanguageModel, State, resets_from_segments
from models.norms import gated_readout, rms_norm
from models.scans.ssd import SSD_SCANS
from models.sizes import Mamba2Dims

DT_FLOOR = 1e-4
"""Smallest initial step size, as published."""


class RMSNorm(nn.Module):
    """Holder of a norm's weight; `weight` has one entry per channel and starts at one."""

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis; the result has the weight's dtype."""
        return rms_norm(x, self.weight, self.eps)


class Mamba2Mixer(nn.Module):
    """One selective state space layer: projection, convolution, scan, gated norm, projection."""

    def __init__(self, dims: Mamba2Dims, scan: str) -> None:
        super().__init__()
        self.dims = dims
        self.scan = SSD_SCANS[scan]
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
        xBC_BTC, conv_BCW = causal_conv_silu(xBC_BTC, self.conv1d.weight, self.conv_bias, before_BCW, reset_BT)
        x_BTHP, B_BTGN, C_BTGN = self._split_heads(xBC_BTC)
        # Decays, steps and state stay at fp32 or better: in bf16 a decay near one would round to one.
        full = torch.promote_types(u_BTD.dtype, torch.float32)
        dt_BTH = F.softplus(dt_BTH.to(full) + self.dt_bias.to(full))
        A_H = -torch.exp(self.A_log.to(full))
        y_BTHP, h_BHPN = self.scan(x_BTHP, dt_BTH, A_H, B_BTGN, C_BTGN, h0_BHPN, reset_BT, chunk=dims.chunk)
        gated = gated_readout(y_BTHP, x_BTHP, self.D.to(full), z_BTI, self.norm.weight, dims.norm_eps, dims.ngroups)
        return self.out_proj(gated), {"recurrent": h_BHPN, "conv": conv_BCW}

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


class Mamba2Block(nn.Module):
    """Pre-norm residual block around a mixer; the residual stream is fp32 or better."""

    def __init__(self, dims: Mamba2Dims, scan: str) -> None:
        super().__init__()
        self.norm = RMSNorm(dims.d_model, dims.norm_eps)
        self.mixer = Mamba2Mixer(dims, scan)

    def forward(self, x_BTD: Tensor, state: LayerState | None, reset_BT: Tensor | None) -> tuple[Tensor, LayerState]:
        """Return the residual stream after this block, and the layer's final state."""
        update_BTD, final = self.mixer(self.norm(x_BTD), state, reset_BT)
        return x_BTD + update_BTD, final


class Mamba2Backbone(nn.Module):
    """Embedding, blocks and final norm."""

    def __init__(self, dims: Mamba2Dims, scan: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(dims.vocab_rows, dims.d_model)
        self.layers = nn.ModuleList(Mamba2Block(dims, scan) for _ in range(dims.n_layer))
        self.norm_f = RMSNorm(dims.d_model, dims.norm_eps)


class Mamba2LanguageModel(RecurrentLanguageModel):
    """Mamba-2 language model; see RecurrentLanguageModel for states and segments.

    State parts per layer: `recurrent` (B, H, P, N) in fp32 (float64 if the model is), and `conv` (B, I + 2 G N, W - 1),
    the raw inputs of the convolution in the activations' dtype, oldest first. A given state must hold both parts.
    """

    def __init__(self, dims: Mamba2Dims, seed: int, scan: str = "chunked") -> None:
        """Build the model with published initial values drawn from `seed` alone, on the CPU in fp32."""
        super().__init__()
        self.dims = dims
        self.vocab_size = dims.vocab_size
        self.backbone = Mamba2Backbone(dims, scan)
        self.lm_head = nn.Linear(dims.d_model, dims.vocab_rows, bias=False)
        self.lm_head.weight = self.backbone.embedding.weight
        initialise(self, torch.Generator().manual_seed(seed))

    def forward(
        self, tokens_BT: Tensor, state: State | None = None, segment_ids: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See RecurrentLanguageModel.forward."""
        reset_BT = None if segment_ids is None else resets_from_segments(segment_ids)
        embedded = self.backbone.embedding(tokens_BT)
        x_BTD = embedded.to(torch.promote_types(embedded.dtype, torch.float32))
        final: State = []
        for index, layer in enumerate(self.backbone.layers):
            x_BTD, layer_final = layer(x_BTD, None if state is None else state[index], reset_BT)
            final.append(layer_final)
        return self.backbone.norm_f(x_BTD), final

    def head_weight(self) -> Tensor:
        """See RecurrentLanguageModel.head_weight."""
        return self.lm_head.weight[: self.vocab_size]

    def state_spec(self) -> list[dict[str, PartSpec]]:
        """See RecurrentLanguageModel.state_spec."""
        dims, dtype = self.dims, self.lm_head.weight.dtype
        recurrent_shape = (dims.n_heads, dims.headdim, dims.d_state)
        spec = {
            "recurrent": PartSpec(recurrent_shape, torch.promote_types(dtype, torch.float32), head_axis=0),
            "conv": PartSpec((dims.conv_channels, dims.d_conv - 1), dtype, head_axis=None),
        }
        return [dict(spec) for _ in range(dims.n_layer)]

    def no_decay_parameters(self) -> set[str]:
        """A_log, dt_bias, D, every bias and every norm weight."""
        return {name for name, parameter in self.named_parameters() if parameter.ndim == 1}


@torch.no_grad()
def initialise(model: Mamba2LanguageModel, generator: torch.Generator) -> None:
    """Draw the published initial values (mamba_ssm's Mamba2 and MixerModel), in the order of the layers."""
    model.backbone.embedding.weight.normal_(std=0.02, generator=generator)
    for module in model.modules():
        if isinstance(module, Mamba2Mixer):
            _initialise_mixer(module, generator)


def _initialise_mixer(mixer: Mamba2Mixer, generator: torch.Generator) -> None:
    dims = mixer.dims
    # 1 / sqrt(fan in) is the bound that nn.Linear and nn.Conv1d draw within by default.
    _draw_uniform(mixer.in_proj.weight, dims.d_model**-0.5, generator)
    _draw_uniform(mixer.conv1d.weight, dims.d_conv**-0.5, generator)
    _draw_uniform(mixer.conv_bias, dims.d_conv**-0.5, generator)
    _draw_uniform(mixer.out_proj.weight, (dims.d_inner * dims.n_layer) ** -0.5, generator)
    low, high = (math.log(value) for value in dims.dt_range)
    dt_H = torch.empty(dims.n_heads).uniform_(low, high, generator=generator).exp_().clamp_(min=DT_FLOOR)
    mixer.dt_bias.copy_(dt_H + torch.log(-torch.expm1(-dt_H)))  # the inverse of softplus
    mixer.A_log.uniform_(*dims.a_init_range, generator=generator).log_()


def _draw_uniform(parameter: Tensor, bound: float, generator: torch.Generator) -> None:
    parameter.uniform_(-bound, bound, generator=generator)
