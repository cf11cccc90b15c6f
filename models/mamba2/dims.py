"""How large a Mamba-2 is: dimensions and size presets; imports no torch.

Sources: the model table of the state-spaces/mamba README and the defaults of its Mamba2 module (arXiv:2405.21060).
"""

from dataclasses import dataclass
from typing import ClassVar

from models.architecture import RECURRENT, LayerKeeps, ModelDims, PartShape
from models.errors import ModelError
from models.mamba_layout import MAMBA_EMBEDDING, mamba_tensors
from models.vocabularies import BYTES, PILE


@dataclass(frozen=True, kw_only=True)
class Mamba2Dims(ModelDims):
    """Dimensions of a Mamba-2 language model."""

    ARCHITECTURE: ClassVar[str] = "mamba2"
    EMBEDDING: ClassVar[str] = MAMBA_EMBEDDING
    FP32: ClassVar[tuple[str, ...]] = ("mixer.A_log", "mixer.dt_bias", "mixer.D")
    FREE: ClassVar[frozenset[str]] = frozenset({"chunk", "a_init_range", "dt_range", "pad_vocab_size_multiple"})

    d_state: int = 128
    """N: state columns per head channel."""
    headdim: int = 64
    """P: channels per head."""
    expand: int = 2
    ngroups: int = 1
    """G: groups of heads that share B and C."""
    d_conv: int = 4
    """Taps of the causal depthwise convolution."""
    pad_vocab_size_multiple: int = 16
    a_init_range: tuple[float, float] = (1.0, 16.0)
    """Decay rates A are drawn uniformly from here at initialisation."""
    dt_range: tuple[float, float] = (1e-3, 1e-1)
    """Step sizes dt are drawn log-uniformly from here at initialisation."""

    def __post_init__(self) -> None:
        if self.d_inner % self.headdim or self.n_heads % self.ngroups or self.d_inner % self.ngroups:
            raise ModelError(
                f"Mamba-2 dimensions do not divide: expand * d_model = {self.d_inner} must be a multiple of "
                f"headdim = {self.headdim} and its {self.n_heads} heads of ngroups = {self.ngroups}."
            )

    @property
    def d_inner(self) -> int:
        """Channels inside a mixer, H * P."""
        return self.expand * self.d_model

    @property
    def n_heads(self) -> int:
        """H: heads per layer."""
        return self.d_inner // self.headdim

    @property
    def conv_channels(self) -> int:
        """Channels [x, B, C] that pass the convolution."""
        return self.d_inner + 2 * self.ngroups * self.d_state

    @property
    def in_proj_rows(self) -> int:
        """Output channels [z, x, B, C, dt] of the input projection."""
        return self.d_inner + self.conv_channels + self.n_heads

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """See ModelDims.tensor_shapes."""
        mixer = {
            "in_proj.weight": (self.in_proj_rows, self.d_model),
            "conv1d.weight": (self.conv_channels, 1, self.d_conv),
            "conv1d.bias": (self.conv_channels,),
            "dt_bias": (self.n_heads,),
            "A_log": (self.n_heads,),
            "D": (self.n_heads,),
            "norm.weight": (self.d_inner,),
            "out_proj.weight": (self.d_model, self.d_inner),
        }
        return mamba_tensors(self, mixer)

    def layer_keeps(self) -> LayerKeeps:
        """See ModelDims.layer_keeps; I = H P.

        Low: normalised input D, projected input 2 I + 2 G N + H, convolved I + 2 G N, gated I; the scan's output, which
        is gated, I. Full: input D and its norm 1, raw steps H, norms of what is gated G; the scan's steps and sums of
        decays 2 H. Plain: what is gated I and its gate I.
        """
        inner, heads = self.d_inner, self.n_heads
        return LayerKeeps(
            low=self.d_model + self.in_proj_rows + self.conv_channels + inner,
            full=self.d_model + 1 + heads + self.ngroups,
            scan_low=inner,
            scan_full=2 * heads,
            plain_full=2 * inner,
        )

    def layer_state(self, layer: int) -> dict[str, PartShape]:
        """See ModelDims.layer_state."""
        return {
            RECURRENT: PartShape((self.n_heads, self.headdim, self.d_state), head_axis=0),
            "conv": PartShape((self.conv_channels, self.d_conv - 1)),
        }


def _published(d_model: int, n_layer: int) -> Mamba2Dims:
    return Mamba2Dims(d_model=d_model, n_layer=n_layer, vocab_size=PILE)


def _demo(d_model: int) -> Mamba2Dims:
    """Slow decays, so that memory outlasts a training window of 64 bytes and small models fail past it too."""
    return Mamba2Dims(d_model=d_model, n_layer=2, d_state=64, headdim=16, vocab_size=BYTES, a_init_range=(0.02, 0.5))


SIZES = {
    # For tests: every dimension small, uneven and unlike the others.
    "tiny": Mamba2Dims(d_model=16, n_layer=2, vocab_size=19, d_state=8, headdim=4, chunk=16, a_init_range=(0.02, 4.0)),
    "demo": _demo(128),
    # Half and one and a half times as wide, for the sweep model_size.
    "demo-64": _demo(64),
    "demo-192": _demo(192),
    # The two sizes that the paper trained from scratch: it gives only their parameter counts, the dimensions
    # are our guess, the nearest to those counts with published widths.
    "45m": _published(512, 12),
    "85m": _published(768, 12),
    # The paper's 125M is the 130M of the published models.
    "125m": _published(768, 24),
    "130m": _published(768, 24),
    "370m": _published(1024, 48),
    "780m": _published(1536, 48),
    "1.3b": _published(2048, 48),
    "2.7b": _published(2560, 64),
}
