"""Gated linear attention (arXiv:2312.06635), as flash-linear-attention's GLA computes it and with its parameter names.

Legend: B batch, T position, D model width, H head, K key channel, V value channel, F MLP channel.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.architecture import RECURRENT
from models.fla_backbone import FlaLanguageModel, GatedMLP, RMSNorm
from models.gla.dims import GATE_NORMALISER, GATE_RANK, GlaDims
from models.interface import LayerState
from models.norms_fused import GATED_NORMS
from models.scans.gated import GATED_SCANS


class GatedLinearAttention(nn.Module):
    """Projections, forget gate, scan, norm of each head, output gate, projection."""

    def __init__(self, dims: GlaDims, kernel: str) -> None:
        super().__init__()
        self.dims = dims
        self.scan = GATED_SCANS[kernel]
        self.gated_norm = GATED_NORMS[kernel]
        self.q_proj = nn.Linear(dims.d_model, dims.keys, bias=False)
        self.k_proj = nn.Linear(dims.d_model, dims.keys, bias=False)
        self.v_proj = nn.Linear(dims.d_model, dims.values, bias=False)
        self.g_proj = nn.Linear(dims.d_model, dims.values, bias=False)
        self.gk_proj = nn.Sequential(
            nn.Linear(dims.d_model, GATE_RANK, bias=False), nn.Linear(GATE_RANK, dims.keys, bias=True)
        )
        self.g_norm_swish_gate = RMSNorm(dims.values // dims.n_heads, dims.norm_eps)
        self.o_proj = nn.Linear(dims.values, dims.d_model, bias=False)

    def forward(self, x_BTD: Tensor, h0_BHKV: Tensor | None, reset_BT: Tensor | None) -> tuple[Tensor, Tensor]:
        """Map normalised inputs (B, T, D) to the residual update (B, T, D) and the state after the last position."""
        heads = (self.dims.n_heads, -1)
        q_BTHK, k_BTHK, v_BTHV = (
            projection(x_BTD).unflatten(-1, heads) for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        # Decays and state stay at fp32 or better: in bf16 a decay near one would round to one.
        full = torch.promote_types(x_BTD.dtype, torch.float32)
        decay_BTHK = (F.logsigmoid(self.gk_proj(x_BTD).to(full)) / GATE_NORMALISER).unflatten(-1, heads)
        o_BTHV, h_BHKV = self.scan(
            q_BTHK,
            k_BTHK,
            v_BTHV,
            decay_BTHK,
            h0_BHKV,
            reset_BT,
            scale=q_BTHK.shape[-1] ** -0.5,
            chunk=self.dims.chunk,
        )
        norm, gate_BTHV = self.g_norm_swish_gate, self.g_proj(x_BTD).unflatten(-1, heads)
        gated_BTHV = self.gated_norm(o_BTHV, gate_BTHV, norm.weight, norm.eps)
        return self.o_proj(gated_BTHV.flatten(2)), h_BHKV


class GlaBlock(nn.Module):
    """Pre-norm residual block: attention, then MLP; the residual stream is fp32 or better."""

    def __init__(self, dims: GlaDims, kernel: str) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(dims.d_model, dims.norm_eps)
        self.attn = GatedLinearAttention(dims, kernel)
        self.mlp_norm = RMSNorm(dims.d_model, dims.norm_eps)
        self.mlp = GatedMLP(dims.d_model, dims.mlp, kernel)

    def forward(self, x_BTD: Tensor, state: LayerState | None, reset_BT: Tensor | None) -> tuple[Tensor, LayerState]:
        """Return the residual stream after this block, and the layer's final state."""
        update_BTD, h_BHKV = self.attn(self.attn_norm(x_BTD), None if state is None else state[RECURRENT], reset_BT)
        x_BTD = x_BTD + update_BTD
        return x_BTD + self.mlp(self.mlp_norm(x_BTD)), {RECURRENT: h_BHKV}


class GlaLanguageModel(FlaLanguageModel):
    """GLA language model; see RecurrentLanguageModel for states and segments.

    State per layer: `recurrent` (B, H, K, V) in fp32 (float64 if the model is); flash-linear-attention's own cache has
    (B, H, V, K).
    """

    dims: GlaDims

    def __init__(self, dims: GlaDims, seed: int, kernel: str = "chunked") -> None:
        """Build the model with fla's initial values drawn from `seed` alone, on the CPU in fp32."""
        layers = [GlaBlock(dims, kernel) for _ in range(dims.n_layer)]
        super().__init__(dims, layers, RMSNorm(dims.d_model, dims.norm_eps))
        self._draw_initial_values(torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def _draw_initial_values(self, generator: torch.Generator) -> None:
        """As fla does: matrices and embedding N(0, 0.02), biases of the forget gates zero, norm weights one."""
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=0.02, generator=generator)
            elif name.endswith("bias"):
                parameter.uniform_(*self.dims.gate_range, generator=generator)

    def no_decay_parameters(self) -> set[str]:
        """Every bias and every norm weight."""
        return {name for name, parameter in self.named_parameters() if parameter.ndim == 1}
