"""How large a GLA is: dimensions and size presets; imports no torch.

Sources: the configurations in flash-linear-attention (legacy/training/configs, fla/models/gla), arXiv:2312.06635.
"""

from dataclasses import dataclass
from typing import ClassVar

from models.architecture import LayerKeeps
from models.fla_layout import LinearAttentionDims, fla_tensors
from models.vocabularies import BYTES, PILE

GATE_RANK = 16
"""Channels between the two matrices of the forget gate."""
GATE_NORMALISER = 16
"""The log of the forget gate is divided by this."""
MISTRAL = 32000
"""Entries of the tokenizer of the fla-hub models."""


@dataclass(frozen=True, kw_only=True)
class GlaDims(LinearAttentionDims):
    """Dimensions of a GLA language model."""

    ARCHITECTURE: ClassVar[str] = "gla"
    FREE: ClassVar[frozenset[str]] = frozenset({"gate_range"})

    n_heads: int = 4
    expand_k: float = 0.5
    mlp_width: int | None = None
    """F: channels inside the gated MLP; None is 8 / 3 of D, rounded up to 256."""
    gate_range: tuple[float, float] = (0.0, 0.0)
    """Biases of the forget gates are drawn uniformly from here at initialisation; zero as published."""
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.mlp_width is None:
            object.__setattr__(self, "mlp_width", 256 * -(-int(self.d_model * 8 / 3) // 256))
        super().__post_init__()

    @property
    def mlp(self) -> int:
        """F as a number."""
        assert self.mlp_width is not None
        return self.mlp_width

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """See ModelDims.tensor_shapes."""
        width, keys, values = self.d_model, self.keys, self.values
        layer = {
            "attn_norm.weight": (width,),
            "attn.q_proj.weight": (keys, width),
            "attn.k_proj.weight": (keys, width),
            "attn.v_proj.weight": (values, width),
            "attn.g_proj.weight": (values, width),
            "attn.gk_proj.0.weight": (GATE_RANK, width),
            "attn.gk_proj.1.weight": (keys, GATE_RANK),
            "attn.gk_proj.1.bias": (keys,),
            "attn.g_norm_swish_gate.weight": (values // self.n_heads,),
            "attn.o_proj.weight": (width, values),
            "mlp_norm.weight": (width,),
            "mlp.gate_proj.weight": (self.mlp, width),
            "mlp.up_proj.weight": (self.mlp, width),
            "mlp.down_proj.weight": (width, self.mlp),
        }
        return fla_tensors(self, [layer] * self.n_layer, {"model.norm.weight": (width,)})

    def layer_keeps(self) -> LayerKeeps:
        """See ModelDims.layer_keeps; H K key and H V value channels, F channels of the MLP.

        Low: two normalised inputs 2 D, the gate's rank, values read, gate and gated 3 H V, MLP 3 F; the scan's queries
        and keys 2 H K and values H V. Full: inputs 2 D and their norms 2, raw gates H K, norms of heads H; the scan's
        decays H K and scores of a block. Plain: values normalised and the gate's silu 2 H V, the MLP's F.
        """
        keys, values = self.keys, self.values
        return LayerKeeps(
            low=2 * self.d_model + GATE_RANK + 3 * values + 3 * self.mlp,
            full=2 * self.d_model + 2 + keys + self.n_heads,
            scan_low=2 * keys + values,
            scan_full=keys + self.SCORES * self.n_heads,
            plain_low=2 * values + self.mlp,
        )


SIZES = {
    # For tests: every dimension small, uneven and unlike the others.
    "tiny": GlaDims(d_model=12, n_layer=2, n_heads=2, mlp_width=20, vocab_size=19, chunk=16),
    # One head, so that what its slowest channels gather past the training length reaches all others through their norm;
    # half of its gates start so far up that no short training can make them forget.
    "demo": GlaDims(
        d_model=128,
        n_layer=2,
        n_heads=1,
        expand_k=1.0,
        mlp_width=256,
        gate_range=(-16.0, 24.0),
        vocab_size=BYTES,
    ),
    # The paper gives 70M for the one it trained from scratch; the dimensions are our guess: Pythia-70M's, untied.
    "70m": GlaDims(d_model=512, n_layer=6, vocab_size=PILE),
    "340m": GlaDims(d_model=1024, n_layer=24, vocab_size=MISTRAL, tied=True),
    "1.3b": GlaDims(d_model=2048, n_layer=24, vocab_size=MISTRAL),
}
