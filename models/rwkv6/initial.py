"""The official initial values of RWKV-6 (BlinkDL/RWKV-LM, RWKV-v5/src/model.py: x060 classes, generate_init_weight).

flash-linear-attention starts every decay, mix and bonus at the same value instead, from which training goes worse.
Legend: D model width, A key channels of a layer.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from models.rwkv6.dims import Rwkv6Dims

Parameters = dict[str, nn.Parameter]


@torch.no_grad()
def draw_initial_values(named: Iterable[tuple[str, nn.Parameter]], dims: Rwkv6Dims, generator: torch.Generator) -> None:
    """Give the named parameters of a whole model their initial values; layers in order, norms are left as built."""
    values = dict(named)
    values[dims.EMBEDDING].uniform_(-1e-4, 1e-4, generator=generator)
    for layer in range(dims.n_layer):
        prefix = f"model.layers.{layer}."
        own = {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
        _draw_time_mix(own, dims, layer, generator)
        _draw_channel_mix(own, dims, layer, generator)
    if not dims.tied:
        gain = 0.5 * max(1.0, (dims.vocab_rows / dims.d_model) ** 0.5)
        nn.init.orthogonal_(values[dims.HEAD], gain=gain, generator=generator)


def _draw_time_mix(own: Parameters, dims: Rwkv6Dims, layer: int, generator: torch.Generator) -> None:
    # 0 in the first layer, 1 in the last.
    depth = layer / max(1, dims.n_layer - 1)
    early_D = _early_mix(dims, layer)
    half_D = _early_mix(dims, layer, power=0.5)
    own["attn.x_proj.0.mu"].copy_(early_D)
    own["attn.x_bias"].copy_(torch.stack([half_D, early_D, early_D, early_D - 0.3 * depth, half_D]))
    own["attn.x_proj.0.linear.weight"].zero_()
    own["attn.x_proj.2.weight"].uniform_(-0.01, 0.01, generator=generator)
    own["attn.w_proj.linear.lora.0.weight"].zero_()
    own["attn.w_proj.linear.lora.2.weight"].uniform_(-0.01, 0.01, generator=generator)
    along_A = torch.arange(dims.keys) / max(1, dims.keys - 1)
    # The log of the decay rate: from exp(-6) a step in the first channel to exp(-1) in the last, as published.
    slowest, fastest = dims.decay_range
    own["attn.w_proj.linear.lora.2.bias"].copy_(slowest + (fastest - slowest) * along_A ** (0.7 + 1.3 * depth))
    zigzag_A = ((torch.arange(dims.keys) + 1) % 3 - 1) * 0.1
    own["attn.bonus"].copy_((depth * (1 - along_A) + zigzag_A).view_as(own["attn.bonus"]))
    own["attn.g_norm.weight"].fill_(((1 + layer) / dims.n_layer) ** 0.7)
    for name, gain in (("r_proj", 1.0), ("k_proj", 0.1), ("v_proj", 1.0), ("g_proj", 0.1)):
        nn.init.orthogonal_(own[f"attn.{name}.linear.weight"], gain=gain, generator=generator)
    own["attn.o_proj.weight"].zero_()


def _draw_channel_mix(own: Parameters, dims: Rwkv6Dims, layer: int, generator: torch.Generator) -> None:
    for name in ("key", "receptance"):
        own[f"ffn.{name}.mu"].copy_(_early_mix(dims, layer))
    nn.init.orthogonal_(own["ffn.key.linear.weight"], gain=1.0, generator=generator)
    own["ffn.value.weight"].zero_()
    own["ffn.receptance.linear.weight"].zero_()


def _early_mix(dims: Rwkv6Dims, layer: int, power: float = 1.0) -> Tensor:
    """How much of the position before each channel starts with, (D,): less in later channels and later layers."""
    return 1 - (torch.arange(dims.d_model) / dims.d_model) ** (power * (1 - layer / dims.n_layer))
