"""What an architecture says of itself before torch is imported: dimensions, sizes, tensors, state, checkpoint layout.

A dry run works with this alone, in milliseconds. Every architecture is a module that holds one `Architecture`;
`models.registry` lists them.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

LAYOUTS = ("published", "hf")
"""Layouts that checkpoints are exported in: that of the published files, and that of the classes of transformers."""
RECURRENT = "recurrent"
"""The part of a state that interventions touch by default, kept in fp32 or better; see PartShape."""


@dataclass(frozen=True)
class PartShape:
    """Shape of one named part of one layer's state, for one sequence."""

    shape: tuple[int, ...]
    head_axis: int | None = None
    """Axis of `shape` that counts heads; None if the part has none."""

    @property
    def elements(self) -> int:
        """Numbers in the part."""
        return math.prod(self.shape)

    @property
    def heads(self) -> int:
        """Heads, 1 for a part without."""
        return 1 if self.head_axis is None else self.shape[self.head_axis]


@dataclass(frozen=True, kw_only=True)
class LayerKeeps:
    """Numbers that one layer keeps per position from its forward pass for its backward pass, by their dtype."""

    low: int
    """In the dtype of the activations, outside the scan."""
    full: int
    """In fp32, outside the scan."""
    scan_low: int = 0
    """In the dtype of the activations, by the fused scan alone; what others keep too is not counted twice."""
    scan_full: int = 0
    """In fp32, by the fused scan alone."""
    plain_low: int = 0
    """In the dtype of the activations, where no fused kernels follow the scan."""
    plain_full: int = 0
    """In fp32, where no fused kernels follow the scan."""

    def bytes(self, activation_bytes: int, *, fused: bool = True) -> int:
        """Bytes per position, with so many bytes to a number in the dtype of the activations.

        Without `fused` an upper bound: our own scans keep no more than the fused ones.
        """
        low, full = self.low + self.scan_low, self.full + self.scan_full
        if not fused:
            low, full = low + self.plain_low, full + self.plain_full
        return low * activation_bytes + full * 4


@dataclass(frozen=True, kw_only=True)
class ModelDims(ABC):
    """Dimensions of a language model, from which every tensor's shape and the state's follow."""

    ARCHITECTURE: ClassVar[str]
    EMBEDDING: ClassVar[str]
    """Name of the embedding in checkpoints."""
    HEAD: ClassVar[str] = "lm_head.weight"
    """Name of the output matrix in checkpoints; not written where it is the embedding."""
    FREE: ClassVar[frozenset[str]] = frozenset()
    """Fields that change no tensor's shape and no result of a trained model: initial ranges, block lengths."""

    FP32: ClassVar[tuple[str, ...]] = ()
    """Ends of the names of the tensors that stay in fp32 where all others are bf16: what decays are made of, where bf16
    would round away a step of training, and what is added in fp32."""

    ADVICE: ClassVar[Mapping[str, str]] = {}
    """Field -> what to do where a checkpoint has another value of it, beside choosing another size."""

    d_model: int
    """D: width of the residual stream."""
    n_layer: int
    vocab_size: int
    """Tokens that can be predicted; the embedding has `vocab_rows` rows."""
    pad_vocab_size_multiple: int = 1
    tied: bool = True
    """Whether the output matrix is the embedding."""
    norm_eps: float = 1e-5
    chunk: int = 64
    """Positions per block of the chunked scan: speed only, results agree to rounding."""

    @property
    def vocab_rows(self) -> int:
        """Embedding rows: the vocabulary rounded up to `pad_vocab_size_multiple`."""
        return -(-self.vocab_size // self.pad_vocab_size_multiple) * self.pad_vocab_size_multiple

    @abstractmethod
    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor of a checkpoint; a tied head is left out."""

    @abstractmethod
    def layer_state(self, layer: int) -> dict[str, PartShape]:
        """Parts of one layer's state."""

    def parameters(self) -> int:
        """Exact number of parameters; a tied head counts once."""
        return sum(math.prod(shape) for shape in self.tensor_shapes().values())

    def layer_keeps(self) -> LayerKeeps | None:
        """What a layer keeps per position for its backward pass; None where nobody has counted it."""
        return None

    def fp32_parameters(self) -> int:
        """Number of parameters that stay in fp32, see `FP32`."""
        return sum(math.prod(shape) for name, shape in self.tensor_shapes().items() if name.endswith(self.FP32))

    def state_elements(self) -> dict[str, int]:
        """Elements of each state part of one sequence, summed over the layers."""
        return self._sum_of_parts(lambda part: part.elements)

    def state_groups(self) -> dict[str, int]:
        """Heads of each state part, summed over the layers; a part without heads counts as one."""
        return self._sum_of_parts(lambda part: part.heads)

    def state_bytes(self, activation_bytes: int = 4) -> int:
        """Bytes of one sequence's state: `recurrent` in fp32, all else at `activation_bytes` per element."""
        sizes = self.state_elements().items()
        return sum(count * (4 if name == RECURRENT else activation_bytes) for name, count in sizes)

    def _sum_of_parts(self, measure: Any) -> dict[str, int]:
        totals: dict[str, int] = {}
        for layer in range(self.n_layer):
            for name, part in self.layer_state(layer).items():
                totals[name] = totals.get(name, 0) + measure(part)
        return totals


class CheckpointLayout(Protocol):
    """How the config.json of an architecture's checkpoints reads, and what their tensors are called."""

    def describes(self, config: Mapping[str, Any]) -> bool:
        """Whether this config.json is one of this architecture."""
        ...

    def file_shapes(self, dims: Any, names: Collection[str]) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor of a file that holds `names`, by which its layout is known."""
        ...

    def canonical(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """The tensors of a file of any accepted layout as they are called and laid out here."""
        ...

    def config_of(self, dims: Any) -> dict[str, Any]:
        """The config.json that is written for these dimensions."""
        ...

    def exported_config(self, dims: Any, layout: str) -> dict[str, Any]:
        """The config.json of a layout of LAYOUTS, for readers elsewhere. Raises ModelError for what it cannot say."""
        ...

    def exported(self, tensors: Mapping[str, Any], layout: str) -> dict[str, Any]:
        """The tensors, head included, as a layout of LAYOUTS has them; the inverse of `canonical`."""
        ...

    def dims_of(self, config: Mapping[str, Any], where: str) -> ModelDims:
        """The dimensions that a config.json describes; `where` names it in errors. Raises ModelError."""
        ...


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One architecture. The class of its model is named, not imported, so that torch stays out."""

    name: str
    dims: type[ModelDims]
    sizes: Mapping[str, ModelDims]
    """Size presets by name; `demo`, and `tiny` for tests, are among them."""
    model: str
    """`module:class` of the model, a RecurrentLanguageModel made from (dims, seed, kernel)."""
    layout: CheckpointLayout
    fused_packages: tuple[str, ...] = ()
    """What its fused scan comes from, see `models.kernels.MODULES`; empty: it has none."""
