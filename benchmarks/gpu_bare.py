"""Bare loops on the raw kernels, from zero state: what benchmarks/gpu_steps.py compares our models with.

Each takes the weights of one of our models and calls what its authors' own training code calls. Plain torch remains
where no kernel of theirs is: embedding, matrices, the norms of the residual stream, the loss on whole logits.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.interface import RecurrentLanguageModel


class BareLoop(nn.Module):
    """Residual blocks of one of our models, run by raw kernels."""

    def __init__(self, model: RecurrentLanguageModel) -> None:
        super().__init__()
        self.model = model

    def step(self, tokens_BT1: Tensor) -> None:
        """A forward and a backward pass with torch's own loss on whole logits."""
        logits = self.model.head(self(tokens_BT1[:, :-1]))
        F.cross_entropy(logits.flatten(0, 1), tokens_BT1[:, 1:].flatten()).backward()
        self.zero_grad(set_to_none=True)


class BareMamba(BareLoop):
    """Mamba-1 or Mamba-2."""

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Hidden vectors (B, T, D)."""
        backbone: Any = self.model.backbone
        mix = _mamba2 if hasattr(backbone.layers[0].mixer, "norm") else _mamba1
        x: Tensor = backbone.embedding(tokens_BT).float()
        for block in backbone.layers:
            x = x + mix(block.mixer, _rms(x, block.norm))
        return _rms(x, backbone.norm_f)


class BareGla(BareLoop):
    """Gated linear attention."""

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Hidden vectors (B, T, D)."""
        from fla.modules.activations import swiglu

        backbone: Any = self.model.model
        x: Tensor = backbone.embeddings(tokens_BT).float()
        for block in backbone.layers:
            x = x + _attend(block.attn, _rms(x, block.attn_norm))
            u, mlp = _rms(x, block.mlp_norm), block.mlp
            x = x + mlp.down_proj(swiglu(mlp.gate_proj(u), mlp.up_proj(u)))
        return _rms(x, backbone.norm)


BARE: dict[str, type[BareLoop]] = {"mamba1": BareMamba, "mamba2": BareMamba, "gla": BareGla}


def _rms(x: Tensor, norm: Any) -> Tensor:
    return F.rms_norm(x, norm.weight.shape, norm.weight.float(), norm.eps).to(norm.weight.dtype)


def _convolved(mixer: Any, x_BTC: Tensor) -> Tensor:
    from causal_conv1d import causal_conv1d_fn

    weight, bias = mixer.conv1d.weight.squeeze(1), mixer.conv1d.bias
    y_BCT: Tensor = causal_conv1d_fn(x_BTC.transpose(1, 2), weight, bias, activation="silu")
    return y_BCT


def _mamba2(mixer: Any, u_BTD: Tensor) -> Tensor:
    from mamba_ssm.ops.triton.layernorm_gated import rmsnorm_fn
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    d = mixer.dims
    z, xBC, dt = mixer.in_proj(u_BTD).split([d.d_inner, d.conv_channels, d.n_heads], dim=-1)
    columns = d.ngroups * d.d_state
    x, B, C = _convolved(mixer, xBC).transpose(1, 2).split([d.d_inner, columns, columns], dim=-1)
    y = mamba_chunk_scan_combined(
        x.unflatten(-1, (d.n_heads, -1)),
        dt,
        -torch.exp(mixer.A_log.float()),
        B.unflatten(-1, (d.ngroups, -1)),
        C.unflatten(-1, (d.ngroups, -1)),
        chunk_size=256,
        D=mixer.D.float(),
        dt_bias=mixer.dt_bias.float(),
        dt_softplus=True,
    )
    gated = rmsnorm_fn(y.flatten(2), mixer.norm.weight, None, z, eps=d.norm_eps, norm_before_gate=False)
    update: Tensor = mixer.out_proj(gated)
    return update


def _mamba1(mixer: Any, u_BTD: Tensor) -> Tensor:
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    d = mixer.dims
    x, z = mixer.in_proj(u_BTD).chunk(2, dim=-1)
    x_BDT = _convolved(mixer, x)
    dt, B, C = mixer.x_proj(x_BDT.transpose(1, 2)).split([d.rank, d.d_state, d.d_state], dim=-1)
    y_BDT = selective_scan_fn(
        x_BDT,
        F.linear(dt, mixer.dt_proj.weight).transpose(1, 2),
        -torch.exp(mixer.A_log.float()),
        B.transpose(1, 2).contiguous(),
        C.transpose(1, 2).contiguous(),
        mixer.D.float(),
        z=z.transpose(1, 2),
        delta_bias=mixer.dt_proj.bias.float(),
        delta_softplus=True,
    )
    update: Tensor = mixer.out_proj(y_BDT.transpose(1, 2))
    return update


def _attend(attn: Any, u_BTD: Tensor) -> Tensor:
    from fla.modules.fused_norm_gate import rms_norm_gated
    from fla.ops.gla import chunk_gla

    heads, norm = (attn.dims.n_heads, -1), attn.g_norm_swish_gate
    q, k, v, g = (one(u_BTD).unflatten(-1, heads) for one in (attn.q_proj, attn.k_proj, attn.v_proj, attn.g_proj))
    decay = (F.logsigmoid(attn.gk_proj(u_BTD).float()) / 16).unflatten(-1, heads)
    o, _ = chunk_gla(q, k, v, decay)
    update: Tensor = attn.o_proj(rms_norm_gated(o, g, norm.weight, None, eps=norm.eps).flatten(2))
    return update
