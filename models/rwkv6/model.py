"""RWKV-6 (arXiv:2404.05892), with the parameter names of flash-linear-attention.

Legend: B batch, T position, D model width, H head, K key channel, V value channel, F channel of the channel mix, J the
five branches of the token shift (receptance, decay, key, value, gate), R rank of a mix.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.architecture import RECURRENT
from models.fla_backbone import FlaLanguageModel, LayerNorm
from models.interface import LayerState
from models.rwkv6.dims import BRANCHES, Rwkv6Dims
from models.rwkv6.initial import draw_initial_values
from models.scans.gated import GATED_SCANS


def token_shift(x_BTD: Tensor, before_BD: Tensor | None, reset_BT: Tensor | None) -> Tensor:
    """Return how each position's predecessor differs from it, (B, T, D); before the first position there is zero."""
    first_B1D = torch.zeros_like(x_BTD[:, :1]) if before_BD is None else before_BD.to(x_BTD.dtype).unsqueeze(1)
    shifted_BTD = torch.cat([first_B1D, x_BTD[:, :-1]], dim=1)
    if reset_BT is not None:
        shifted_BTD = shifted_BTD.masked_fill(reset_BT[..., None], 0.0)
    return shifted_BTD - x_BTD


class Projection(nn.Module):
    """A matrix under the name that flash-linear-attention gives it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.linear = inner

    def forward(self, x: Tensor) -> Tensor:
        """Apply it."""
        mapped: Tensor = self.linear(x)
        return mapped


class ShiftedProjection(Projection):
    """A matrix on a fixed mix of a position and the one before it."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__(nn.Linear(width, out, bias=False))
        self.mu = nn.Parameter(torch.zeros(width))

    def shifted(self, x_BTD: Tensor, delta_BTD: Tensor) -> Tensor:
        """Map x + delta * mu."""
        return self(torch.addcmul(x_BTD, delta_BTD, self.mu))


class LowRank(nn.Module):
    """out(tanh(in x)) + bias."""

    def __init__(self, width: int, rank: int, out: int) -> None:
        super().__init__()
        self.lora = nn.Sequential(nn.Linear(width, rank, bias=False), nn.Tanh(), nn.Linear(rank, out))

    def forward(self, x: Tensor) -> Tensor:
        """Map the last axis."""
        mapped: Tensor = self.lora(x)
        return mapped


class TimeMix(nn.Module):
    """Token shift by data-dependent mixes, scan with decays and bonus, norm of each head, gate, projection."""

    def __init__(self, dims: Rwkv6Dims, kernel: str) -> None:
        super().__init__()
        self.dims = dims
        self.scan = GATED_SCANS[kernel]
        width = dims.d_model
        self.x_proj = nn.Sequential(
            ShiftedProjection(width, BRANCHES * dims.mix_rank),
            nn.Tanh(),
            nn.Linear(BRANCHES * dims.mix_rank, width, bias=False),
        )
        self.x_bias = nn.Parameter(torch.zeros(BRANCHES, width))
        self.r_proj = Projection(nn.Linear(width, dims.keys, bias=False))
        self.w_proj = Projection(LowRank(width, dims.decay_rank, dims.keys))
        self.k_proj = Projection(nn.Linear(width, dims.keys, bias=False))
        self.v_proj = Projection(nn.Linear(width, dims.values, bias=False))
        self.g_proj = Projection(nn.Linear(width, dims.values, bias=False))
        self.bonus = nn.Parameter(torch.zeros(dims.n_heads, dims.keys // dims.n_heads))
        self.g_norm = nn.GroupNorm(dims.n_heads, dims.values, eps=dims.head_norm_eps)
        self.o_proj = nn.Linear(dims.values, width, bias=False)

    def forward(
        self, x_BTD: Tensor, h0_BHKV: Tensor | None, before_BD: Tensor | None, reset_BT: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Map normalised inputs (B, T, D) to the residual update (B, T, D) and the state after the last position."""
        heads = (self.dims.n_heads, -1)
        r_BTD, w_BTD, k_BTD, v_BTD, g_BTD = self._mixed(x_BTD, token_shift(x_BTD, before_BD, reset_BT))
        # Decays and state stay at fp32 or better: in bf16 a decay near one would round to one.
        full = torch.promote_types(x_BTD.dtype, torch.float32)
        decay_BTHK = -torch.exp(self.w_proj(w_BTD).to(full)).unflatten(-1, heads)
        o_BTHV, h_BHKV = self.scan(
            self.r_proj(r_BTD).unflatten(-1, heads),
            self.k_proj(k_BTD).unflatten(-1, heads),
            self.v_proj(v_BTD).unflatten(-1, heads),
            decay_BTHK,
            h0_BHKV,
            reset_BT,
            bonus_HK=self.bonus.to(full),
            chunk=self.dims.chunk,
        )
        gated_BTV = self._normalised(o_BTHV.flatten(2)) * F.silu(self.g_proj(g_BTD))
        return self.o_proj(gated_BTV), h_BHKV

    def _mixed(self, x_BTD: Tensor, delta_BTD: Tensor) -> tuple[Tensor, ...]:
        """The inputs of the five branches, each its own mix of a position and the one before it."""
        shifted, out = self.x_proj[0], self.x_proj[2]
        assert isinstance(shifted, ShiftedProjection) and isinstance(out, nn.Linear)
        z_NJR = torch.tanh(shifted.shifted(x_BTD, delta_BTD)).flatten(0, 1).unflatten(-1, (BRANCHES, -1))
        out_JRD = out.weight.unflatten(1, (BRANCHES, -1)).permute(1, 2, 0)
        mix_JND = torch.baddbmm(self.x_bias.unsqueeze(1), z_NJR.transpose(0, 1), out_JRD)
        mixed_JBTD = torch.addcmul(x_BTD, delta_BTD, mix_JND.unflatten(1, x_BTD.shape[:2]))
        return mixed_JBTD.unbind(0)

    def _normalised(self, o_BTV: Tensor) -> Tensor:
        """Normalise each head's outputs, in fp32 or better; the result has the dtype of o."""
        full = torch.promote_types(o_BTV.dtype, torch.float32)
        norm = self.g_norm
        rows_NV = o_BTV.to(full).flatten(0, 1)
        normal_NV = F.group_norm(rows_NV, norm.num_groups, norm.weight.to(full), norm.bias.to(full), norm.eps)
        return normal_NV.view_as(o_BTV).to(o_BTV.dtype)


class ChannelMix(nn.Module):
    """sigmoid(receptance) * value(relu(key)^2), on fixed mixes of a position and the one before it."""

    def __init__(self, dims: Rwkv6Dims) -> None:
        super().__init__()
        self.key = ShiftedProjection(dims.d_model, dims.ffn)
        self.value = nn.Linear(dims.ffn, dims.d_model, bias=False)
        self.receptance = ShiftedProjection(dims.d_model, dims.d_model)

    def forward(self, x_BTD: Tensor, before_BD: Tensor | None, reset_BT: Tensor | None) -> Tensor:
        """Map normalised inputs (B, T, D) to the residual update (B, T, D)."""
        delta_BTD = token_shift(x_BTD, before_BD, reset_BT)
        value_BTD = self.value(torch.relu(self.key.shifted(x_BTD, delta_BTD)).square())
        return torch.sigmoid(self.receptance.shifted(x_BTD, delta_BTD)) * value_BTD


class Rwkv6Block(nn.Module):
    """Residual block: time mix, then channel mix; the residual stream is fp32 or better."""

    def __init__(self, dims: Rwkv6Dims, kernel: str, first: bool) -> None:
        super().__init__()
        self.pre_norm = LayerNorm(dims.d_model, dims.norm_eps) if first else None
        self.attn_norm = LayerNorm(dims.d_model, dims.norm_eps)
        self.attn = TimeMix(dims, kernel)
        self.ffn_norm = LayerNorm(dims.d_model, dims.norm_eps)
        self.ffn = ChannelMix(dims)

    def forward(self, x_BTD: Tensor, state: LayerState | None, reset_BT: Tensor | None) -> tuple[Tensor, LayerState]:
        """Return the residual stream after this block, and the layer's final state."""
        h0_BHKV, shift_B2D = (None, None) if state is None else (state[RECURRENT], state["shift"])
        before = (None, None) if shift_B2D is None else shift_B2D.unbind(1)
        if self.pre_norm is not None:
            x_BTD = self.pre_norm(x_BTD).to(x_BTD.dtype)
        attended_BTD = self.attn_norm(x_BTD)
        update_BTD, h_BHKV = self.attn(attended_BTD, h0_BHKV, before[0], reset_BT)
        x_BTD = x_BTD + update_BTD
        mixed_BTD = self.ffn_norm(x_BTD)
        final = {RECURRENT: h_BHKV, "shift": torch.stack([attended_BTD[:, -1], mixed_BTD[:, -1]], dim=1)}
        return x_BTD + self.ffn(mixed_BTD, before[1], reset_BT), final


class Rwkv6LanguageModel(FlaLanguageModel):
    """RWKV-6 language model; see RecurrentLanguageModel for states and segments.

    State parts per layer: `recurrent` (B, H, K, V) in fp32 (float64 if the model is), and `shift` (B, 2, D), the last
    normalised inputs of time mix and channel mix in the activations' dtype. A given state must hold both parts.
    """

    dims: Rwkv6Dims

    def __init__(self, dims: Rwkv6Dims, seed: int, kernel: str = "chunked") -> None:
        """Build the model with the official initial values drawn from `seed` alone, on the CPU in fp32."""
        layers = [Rwkv6Block(dims, kernel, first=index == 0) for index in range(dims.n_layer)]
        super().__init__(dims, layers, LayerNorm(dims.d_model, dims.norm_eps))
        draw_initial_values(self.named_parameters(), dims, torch.Generator().manual_seed(seed))

    def no_decay_parameters(self) -> set[str]:
        """Every bias, norm weight and mix, and the bonus."""
        small = ("x_bias", "bonus")
        return {name for name, p in self.named_parameters() if p.ndim == 1 or name.endswith(small)}
