"""The layout of flash-linear-attention's checkpoints (GLA, RWKV-6): config.json to dimensions and back; no torch."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from models.architecture import RECURRENT, ModelDims, PartShape
from models.errors import ModelError
from models.layout import OWN_KEY, check_supported, make_dims, shapes_with_head

FLA_EMBEDDING = "model.embeddings.weight"
_KEYS = {
    "d_model": "hidden_size",
    "n_layer": "num_hidden_layers",
    "vocab_size": "vocab_size",
    "tied": "tie_word_embeddings",
    "norm_eps": "norm_eps",
}


def fla_tensors(
    dims: ModelDims, layers: Sequence[Mapping[str, tuple[int, ...]]], ending: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a model with these layers and this final norm."""
    shapes: dict[str, tuple[int, ...]] = {FLA_EMBEDDING: (dims.vocab_rows, dims.d_model)}
    for index, layer in enumerate(layers):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    shapes |= ending
    return shapes if dims.tied else {**shapes, dims.HEAD: (dims.vocab_rows, dims.d_model)}


@dataclass(frozen=True, kw_only=True)
class LinearAttentionDims(ModelDims):
    """Dimensions of a model whose layers map keys to values, with a state (H, K, V)."""

    EMBEDDING: ClassVar[str] = FLA_EMBEDDING
    SCORES: ClassVar[int] = 64
    """Scores that the fused scan keeps per position and head: those of one block."""

    n_heads: int
    """H: heads per layer."""
    expand_k: float = 1.0
    """All keys of a layer together have this many times D channels."""
    expand_v: float = 1.0
    """All values of a layer together have this many times D channels."""
    tied: bool = False

    def __post_init__(self) -> None:
        if self.keys % self.n_heads or self.values % self.n_heads:
            raise ModelError(
                f"{self.ARCHITECTURE} dimensions do not divide: the {self.keys} key channels and {self.values} value "
                f"channels of a layer must be multiples of n_heads = {self.n_heads}."
            )

    @property
    def keys(self) -> int:
        """H K: key channels of a layer."""
        return int(self.d_model * self.expand_k)

    @property
    def values(self) -> int:
        """H V: value channels of a layer."""
        return int(self.d_model * self.expand_v)

    def layer_state(self, layer: int) -> dict[str, PartShape]:
        """See ModelDims.layer_state."""
        shape = (self.n_heads, self.keys // self.n_heads, self.values // self.n_heads)
        return {RECURRENT: PartShape(shape, head_axis=0)}


@dataclass(frozen=True, kw_only=True)
class FlaLayout:
    """The layout of one architecture, whose `model_type` is its name; see CheckpointLayout."""

    dims: type[ModelDims]
    hf_class: str
    """Class of flash-linear-attention, in transformers' manner, that reads them."""
    keys: Mapping[str, str]
    """Field -> key of config.json, beside those that all of them have."""
    written: Mapping[str, Any]
    """Further keys that are written, for readers elsewhere."""
    supported: Mapping[str, Any]
    """Options that change what a model computes -> the only value that is implemented here, or a tuple of them."""
    own: Mapping[str, str | None] = field(default_factory=dict)
    """Fields that config.json has no key for, kept under OWN_KEY -> the key whose value a file from elsewhere means."""

    def describes(self, config: Mapping[str, Any]) -> bool:
        """See CheckpointLayout."""
        return bool(config.get("model_type") == self.dims.ARCHITECTURE)

    def file_shapes(self, dims: Any, names: Collection[str]) -> dict[str, tuple[int, ...]]:
        """See CheckpointLayout."""
        return shapes_with_head(dims, names)

    def canonical(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """See CheckpointLayout."""
        return dict(tensors)

    def exported(self, tensors: Mapping[str, Any], layout: str) -> dict[str, Any]:
        """See CheckpointLayout."""
        return dict(tensors)

    def exported_config(self, dims: ModelDims, layout: str) -> dict[str, Any]:
        """See CheckpointLayout; both layouts are flash-linear-attention's."""
        for name, key in self.own.items():
            if key is not None and getattr(dims, name) != getattr(dims, key):
                raise ModelError(
                    f"flash-linear-attention's config.json has no key for {name}, which is {getattr(dims, name)} here "
                    f"and would be {getattr(dims, key)} there: write --layout published."
                )
        config = self.config_of(dims)
        del config[OWN_KEY]
        return {"architectures": [self.hf_class], **config}

    def config_of(self, dims: ModelDims) -> dict[str, Any]:
        """See CheckpointLayout."""
        fields = {key: getattr(dims, name) for name, key in {**_KEYS, **self.keys}.items()}
        own = {"chunk": dims.chunk, **{name: getattr(dims, name) for name in self.own}}
        return {"model_type": dims.ARCHITECTURE, **fields, **self.written, OWN_KEY: own}

    def dims_of(self, config: Mapping[str, Any], where: str) -> ModelDims:
        """See CheckpointLayout; refuses options that are not implemented."""
        missing = [key for key in list(_KEYS.values())[:3] if key not in config]
        if missing:
            raise ModelError(f"{where} lacks {', '.join(missing)}: use a config.json of flash-linear-attention.")
        check_supported(config, self.supported, where)
        fields = {name: config[key] for name, key in {**_KEYS, **self.keys}.items() if key in config}
        own = config.get(OWN_KEY) or {}
        fields |= {name: config[key] for name, key in self.own.items() if key is not None and key in config}
        kept = {name: own[name] for name in ("chunk", *self.own) if name in own}
        fields |= {name: tuple(value) if isinstance(value, list) else value for name, value in kept.items()}
        return make_dims(self.dims, fields, where)
