"""How large an RWKV-6 is: dimensions and size presets; imports no torch.

Sources: flash-linear-attention (fla/models/rwkv6, utils/convert_from_rwkv6.py), BlinkDL/RWKV-LM (RWKV-v5), and
arXiv:2404.05892.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from models.architecture import LayerKeeps, PartShape
from models.fla_layout import LinearAttentionDims, fla_tensors
from models.vocabularies import BYTES, PILE

BRANCHES = 5
"""Token shift mixes for receptance, decay, key, value and gate, in this order."""
WORLD = 65536
"""Entries of the RWKV World tokenizer, padded."""


@dataclass(frozen=True, kw_only=True)
class Rwkv6Dims(LinearAttentionDims):
    """Dimensions of an RWKV-6 language model. The defaults are those of the World models."""

    ARCHITECTURE: ClassVar[str] = "rwkv6"
    FREE: ClassVar[frozenset[str]] = frozenset({"decay_range"})
    ADVICE: ClassVar[Mapping[str, str]] = {
        "head_norm_eps": 'if this is a World model, write "initial_state_sweeps": {"head_norm_eps": 0.00064} into its '
        "config.json, because flash-linear-attention has no key for it"
    }

    mix_rank: int = 32
    """R: channels between the two matrices of each token-shift mix."""
    decay_rank: int = 64
    """Channels between the two matrices of the decay."""
    ffn_width: int | None = None
    """F: channels inside the channel mix; None is 3.5 D, rounded up to 32."""
    decay_range: tuple[float, float] = (-6.0, -1.0)
    """Logs of the slowest and the fastest decay rate that a layer starts with."""
    head_norm_eps: float = 64e-5
    """Of the norm over each head's outputs: 1e-5 * head_size_divisor^2 with the divisor 8 of the World models;
    flash-linear-attention builds 1e-5, and its converter sets this afterwards."""

    def __post_init__(self) -> None:
        if self.ffn_width is None:
            object.__setattr__(self, "ffn_width", 32 * -(-int(self.d_model * 3.5) // 32))
        super().__post_init__()

    @property
    def ffn(self) -> int:
        """F as a number."""
        assert self.ffn_width is not None
        return self.ffn_width

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """See ModelDims.tensor_shapes."""
        norm = {"weight": (self.d_model,), "bias": (self.d_model,)}
        layers = [self._layer_tensors() for _ in range(self.n_layer)]
        layers[0] = {**{f"pre_norm.{name}": shape for name, shape in norm.items()}, **layers[0]}
        return fla_tensors(self, layers, {f"model.norm.{name}": shape for name, shape in norm.items()})

    def _layer_tensors(self) -> dict[str, tuple[int, ...]]:
        width, keys, values = self.d_model, self.keys, self.values
        norms = {f"{norm}.{name}": (width,) for norm in ("attn_norm", "ffn_norm") for name in ("weight", "bias")}
        return norms | {
            "attn.x_bias": (BRANCHES, width),
            "attn.x_proj.0.mu": (width,),
            "attn.x_proj.0.linear.weight": (BRANCHES * self.mix_rank, width),
            "attn.x_proj.2.weight": (width, BRANCHES * self.mix_rank),
            "attn.r_proj.linear.weight": (keys, width),
            "attn.w_proj.linear.lora.0.weight": (self.decay_rank, width),
            "attn.w_proj.linear.lora.2.weight": (keys, self.decay_rank),
            "attn.w_proj.linear.lora.2.bias": (keys,),
            "attn.k_proj.linear.weight": (keys, width),
            "attn.v_proj.linear.weight": (values, width),
            "attn.g_proj.linear.weight": (values, width),
            "attn.bonus": (self.n_heads, keys // self.n_heads),
            "attn.g_norm.weight": (values,),
            "attn.g_norm.bias": (values,),
            "attn.o_proj.weight": (width, values),
            "ffn.key.mu": (width,),
            "ffn.key.linear.weight": (self.ffn, width),
            "ffn.value.weight": (width, self.ffn),
            "ffn.receptance.mu": (width,),
            "ffn.receptance.linear.weight": (width, width),
        }

    def layer_keeps(self) -> LayerKeeps:
        """See ModelDims.layer_keeps; H K key and H V value channels, F channels of the channel mix, R ranks.

        Low: time mix: difference to the position before and its mix 2 D, five mixes and five inputs 10 D and their
        ranks 5 R, the decay's rank, normalised values, gate, its silu and gated 4 H V; channel mix 5 D and 2 F; the
        scan's receptances and keys 2 H K and values H V. Full: inputs 2 D and their norms 4, decays H K, values H V and
        norms of heads 2 H; the scan's decays H K and scores of a block.
        """
        keys, values = self.keys, self.values
        return LayerKeeps(
            low=17 * self.d_model + BRANCHES * self.mix_rank + self.decay_rank + 4 * values + 2 * self.ffn,
            full=2 * self.d_model + 4 + keys + values + 2 * self.n_heads,
            scan_low=2 * keys + values,
            scan_full=keys + self.SCORES * self.n_heads,
        )

    def layer_state(self, layer: int) -> dict[str, PartShape]:
        """See ModelDims.layer_state."""
        return {**super().layer_state(layer), "shift": PartShape((2, self.d_model))}


SIZES = {
    # For tests: every dimension small, uneven and unlike the others.
    "tiny": Rwkv6Dims(
        d_model=12,
        n_layer=2,
        n_heads=2,
        expand_k=0.5,
        mix_rank=3,
        decay_rank=5,
        ffn_width=20,
        vocab_size=19,
        chunk=16,
    ),
    # One head, so that what its slowest channels gather past the training length reaches all others through their norm.
    "demo": Rwkv6Dims(
        d_model=128, n_layer=2, n_heads=1, mix_rank=16, decay_rank=32, decay_range=(-20.0, 1.0), vocab_size=BYTES
    ),
    # The paper gives 70M for the one it trained from scratch; the dimensions are our guess: Pythia-70M's width and
    # depth, untied, heads of 64.
    "70m": Rwkv6Dims(d_model=512, n_layer=6, n_heads=8, vocab_size=PILE),
    "1.6b": Rwkv6Dims(d_model=2048, n_layer=24, n_heads=32, vocab_size=WORLD),
    "3b": Rwkv6Dims(d_model=2560, n_layer=32, n_heads=40, vocab_size=WORLD),
    "7b": Rwkv6Dims(d_model=4096, n_layer=32, n_heads=64, mix_rank=64, decay_rank=128, vocab_size=WORLD),
}
