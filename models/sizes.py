"""How large a model is: dimensions and size presets, exact counts of parameters and state; imports no torch.

A dry run prints these counts and checks these names, so this module stays importable in milliseconds.
Sources: the model table of the state-spaces/mamba README and the defaults of its Mamba2 module (arXiv:2405.21060).
"""

from dataclasses import dataclass, replace
from difflib import get_close_matches

from models.errors import ModelError

ARCHITECTURE_NAMES = ("mamba2",)
SCAN_NAMES = ("chunked", "naive")
BYTE_VOCABULARY = 256
PILE_VOCABULARY = 50277
"""Entries of the GPT-NeoX tokenizer that the published models were trained with."""


@dataclass(frozen=True, kw_only=True)
class Mamba2Dims:
    """Dimensions of a Mamba-2 language model. Everything but `chunk` and the two initial ranges fixes tensor shapes."""

    d_model: int
    """Width of the residual stream."""
    n_layer: int
    vocab_size: int
    """Tokens that can be predicted; the embedding has `vocab_rows` rows."""
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
    chunk: int = 64
    """Positions per block of the chunked scan: speed only, results agree to rounding."""
    a_init_range: tuple[float, float] = (1.0, 16.0)
    """Decay rates A are drawn uniformly from here at initialisation."""
    dt_range: tuple[float, float] = (1e-3, 1e-1)
    """Step sizes dt are drawn log-uniformly from here at initialisation."""
    norm_eps: float = 1e-5

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

    @property
    def vocab_rows(self) -> int:
        """Embedding rows: the vocabulary rounded up to `pad_vocab_size_multiple`."""
        return -(-self.vocab_size // self.pad_vocab_size_multiple) * self.pad_vocab_size_multiple

    def parameters(self) -> int:
        """Exact number of parameters; the tied head counts once."""
        conv = self.conv_channels * (self.d_conv + 1)
        projections = self.d_model * (self.in_proj_rows + self.d_inner)
        mixer = projections + conv + 3 * self.n_heads + self.d_inner
        return self.vocab_rows * self.d_model + self.n_layer * (mixer + self.d_model) + self.d_model

    def state_elements(self) -> dict[str, int]:
        """Elements of each state part of one sequence, summed over the layers."""
        recurrent = self.d_inner * self.d_state
        return {
            "recurrent": self.n_layer * recurrent,
            "conv": self.n_layer * self.conv_channels * (self.d_conv - 1),
        }

    def state_bytes(self, activation_bytes: int = 4) -> int:
        """Bytes of one sequence's state: `recurrent` in fp32, `conv` at `activation_bytes` per element."""
        elements = self.state_elements()
        return 4 * elements["recurrent"] + activation_bytes * elements["conv"]


def _published(d_model: int, n_layer: int) -> Mamba2Dims:
    return Mamba2Dims(d_model=d_model, n_layer=n_layer, vocab_size=PILE_VOCABULARY)


SIZES: dict[str, dict[str, Mamba2Dims]] = {
    "mamba2": {
        "demo": Mamba2Dims(
            d_model=128,
            n_layer=2,
            d_state=64,
            headdim=16,
            vocab_size=BYTE_VOCABULARY,
            # Slow decays, so that memory outlasts a training window of 64 bytes and small models fail past it too.
            a_init_range=(0.02, 0.5),
        ),
        # The two sizes that the paper trained from scratch: it gives only their parameter counts, the dimensions
        # are our guess, the nearest to those counts with published widths.
        "45m": _published(512, 12),
        "85m": _published(768, 12),
        "130m": _published(768, 24),
        "370m": _published(1024, 48),
        "780m": _published(1536, 48),
        "1.3b": _published(2048, 48),
        "2.7b": _published(2560, 64),
    }
}


def dims(architecture: str, size: str, vocab_size: int | None = None) -> Mamba2Dims:
    """Return the dimensions of a size preset.

    Args:
        architecture: a name of `ARCHITECTURE_NAMES`.
        size: a preset of that architecture, see `SIZES`.
        vocab_size: entries of the tokenizer in use; the preset's own if None.

    Raises:
        ModelError: for an unknown name, naming the nearest known one.
    """
    check_model_names(architecture, size)
    preset = SIZES[architecture][size]
    return preset if vocab_size is None else replace(preset, vocab_size=vocab_size)


def check_model_names(architecture: str, size: str, scan: str = "chunked") -> None:
    """Raise a ModelError that names the nearest known name if one of the three is unknown."""
    _check_name("model.architecture", architecture, ARCHITECTURE_NAMES)
    _check_name("model.size", size, tuple(SIZES[architecture]))
    _check_name("model.scan", scan, SCAN_NAMES)


def _check_name(setting: str, name: str, known: tuple[str, ...]) -> None:
    if name in known:
        return
    near = get_close_matches(str(name).lower(), known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(known)}."
    raise ModelError(f"{setting} = {name!r} is unknown: {hint}")
