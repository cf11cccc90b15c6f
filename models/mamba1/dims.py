"""How large a Mamba-1 is: dimensions and size presets; imports no torch.

Sources: the model table of the state-spaces/mamba README and the defaults of its Mamba module (arXiv:2312.00752).
"""

from dataclasses import dataclass
from typing import ClassVar

from models.architecture import RECURRENT, LayerKeeps, ModelDims, PartShape
from models.errors import ModelError
from models.mamba_layout import MAMBA_EMBEDDING, mamba_tensors
from models.vocabularies import BYTES, PILE


@dataclass(frozen=True, kw_only=True)
class Mamba1Dims(ModelDims):
    """Dimensions of a Mamba-1 language model. Its state has no heads: every channel has decays of its own."""

    ARCHITECTURE: ClassVar[str] = "mamba1"
    EMBEDDING: ClassVar[str] = MAMBA_EMBEDDING
    FP32: ClassVar[tuple[str, ...]] = ("mixer.A_log", "mixer.dt_proj.bias", "mixer.D")
    FREE: ClassVar[frozenset[str]] = frozenset({"chunk", "a_scale", "dt_range", "pad_vocab_size_multiple"})

    d_state: int = 16
    """N: state columns per channel."""
    expand: int = 2
    d_conv: int = 4
    """Taps of the causal depthwise convolution."""
    dt_rank: int | str = "auto"
    """R: channels from which the step sizes are made; `auto` is d_model / 16, rounded up."""
    pad_vocab_size_multiple: int = 8
    chunk: int = 16
    a_scale: float = 1.0
    """At initialisation column n of every channel decays at the rate n * a_scale, n = 1 to N; 1 as published."""
    dt_range: tuple[float, float] = (1e-3, 1e-1)
    """Step sizes dt are drawn log-uniformly from here at initialisation."""

    def __post_init__(self) -> None:
        if self.dt_rank == "auto":
            object.__setattr__(self, "dt_rank", -(-self.d_model // 16))
        if not isinstance(self.dt_rank, int) or self.dt_rank < 1:
            raise ModelError(f"dt_rank = {self.dt_rank!r} of a Mamba-1 must be 'auto' or a whole number above 0.")

    @property
    def d_inner(self) -> int:
        """I: channels inside a mixer."""
        return self.expand * self.d_model

    @property
    def rank(self) -> int:
        """R as a number."""
        assert isinstance(self.dt_rank, int)
        return self.dt_rank

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """See ModelDims.tensor_shapes."""
        inner = self.d_inner
        mixer = {
            "in_proj.weight": (2 * inner, self.d_model),
            "conv1d.weight": (inner, 1, self.d_conv),
            "conv1d.bias": (inner,),
            "x_proj.weight": (self.rank + 2 * self.d_state, inner),
            "dt_proj.weight": (inner, self.rank),
            "dt_proj.bias": (inner,),
            "A_log": (inner, self.d_state),
            "D": (inner,),
            "out_proj.weight": (self.d_model, inner),
        }
        return mamba_tensors(self, mixer)

    def layer_keeps(self) -> LayerKeeps:
        """See ModelDims.layer_keeps.

        Low: normalised input D, projected input 2 I, convolved I, step sizes with B and C R + 2 N, gated I. Full:
        input D and its norm 1, raw steps I, what is gated I and its gate I. Scan, all in fp32: u, dt, B, C.
        """
        inner, columns = self.d_inner, 2 * self.d_state
        return LayerKeeps(
            low=self.d_model + 4 * inner + self.rank + columns,
            full=self.d_model + 1 + 3 * inner,
            scan_full=2 * inner + columns,
        )

    def layer_state(self, layer: int) -> dict[str, PartShape]:
        """See ModelDims.layer_state."""
        return {
            RECURRENT: PartShape((self.d_inner, self.d_state)),
            "conv": PartShape((self.d_inner, self.d_conv - 1)),
        }


def _published(d_model: int, n_layer: int) -> Mamba1Dims:
    return Mamba1Dims(d_model=d_model, n_layer=n_layer, vocab_size=PILE)


SIZES = {
    # For tests: every dimension small, uneven and unlike the others.
    "tiny": Mamba1Dims(d_model=12, n_layer=2, vocab_size=19, d_state=5, dt_rank=3, chunk=8),
    # Slow decays, so that memory outlasts a training window of 64 bytes and small models fail past it too.
    "demo": Mamba1Dims(d_model=128, n_layer=2, a_scale=1 / 128, vocab_size=BYTES),
    "130m": _published(768, 24),
    "370m": _published(1024, 48),
    "790m": _published(1536, 48),
    "1.4b": _published(2048, 48),
    "2.8b": _published(2560, 64),
}
