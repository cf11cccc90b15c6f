"""The layout of the state-spaces checkpoints of both Mambas: config.json to dimensions and back; imports no torch.

Two layouts are read: that of state-spaces/mamba-* and mamba2-*, which is the one written here, and that of their "-hf"
conversions, which differ in the keys of config.json and in the name of the embedding.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from models.architecture import ModelDims
from models.errors import ModelError
from models.layout import OWN_KEY, check_supported, make_dims, shapes_with_head

MAMBA_EMBEDDING = "backbone.embedding.weight"
_HF_EMBEDDING = "backbone.embeddings.weight"
_PUBLISHED_EPS = 1e-5
"""Of all norms in the published files, which have no key for it."""
_KEYS = {"d_model": "d_model", "n_layer": "n_layer", "vocab_size": "vocab_size", "tied": "tie_embeddings"}
_HF_KEYS = {
    "d_model": "hidden_size",
    "n_layer": "num_hidden_layers",
    "vocab_size": "vocab_size",
    "tied": "tie_word_embeddings",
    "norm_eps": "layer_norm_epsilon",
    "expand": "expand",
    "d_conv": "conv_kernel",
    "d_state": "state_size",
}
_NO_LIMIT = ([0.0, math.inf], [0.0, "Infinity"], [0.0, {"__float__": "Infinity"}], None)
"""Of the step sizes, as it is written by mamba_ssm and by versions of transformers."""
_SUPPORTED: dict[str, Any] = {
    "rms_norm": True,
    "norm_before_gate": False,
    "rmsnorm": True,
    "D_has_hdim": False,
    "bias": False,
    "conv_bias": True,
    "use_conv_bias": True,
    "use_bias": False,
    "use_mambapy": False,
    "hidden_act": "silu",
    "d_ssm": None,
    "dt_limit": _NO_LIMIT,
    "time_step_limit": _NO_LIMIT,
}
"""Options of either layout that change what a model computes, with the only value that is implemented here."""


def mamba_tensors(dims: ModelDims, mixer: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a Mamba whose layers hold a mixer of these tensors."""
    shapes: dict[str, tuple[int, ...]] = {MAMBA_EMBEDDING: (dims.vocab_rows, dims.d_model)}
    for layer in range(dims.n_layer):
        shapes[f"backbone.layers.{layer}.norm.weight"] = (dims.d_model,)
        shapes |= {f"backbone.layers.{layer}.mixer.{name}": shape for name, shape in mixer.items()}
    shapes["backbone.norm_f.weight"] = (dims.d_model,)
    return shapes if dims.tied else {**shapes, dims.HEAD: (dims.vocab_rows, dims.d_model)}


def _renamed(entries: Mapping[str, Any], old: str, new: str) -> dict[str, Any]:
    return {new if name == old else name: value for name, value in entries.items()}


@dataclass(frozen=True, kw_only=True)
class MambaLayout:
    """The layout of one of the two; see CheckpointLayout."""

    dims: type[ModelDims]
    hf_type: str
    """`model_type` of the "-hf" conversions."""
    layer: str
    """`ssm_cfg.layer` of the published files."""
    layer_by_default: bool
    """Whether a published file without `ssm_cfg.layer` is of this kind."""
    ssm_keys: tuple[str, ...]
    """Fields that `ssm_cfg` may hold under their own names."""
    hf_class: str
    """Class of transformers that reads them."""
    hf_keys: Mapping[str, str]
    """Field -> key of the "-hf" layout, beside those that both Mambas have."""
    hf_more: Mapping[str, str] = field(default_factory=dict)
    """Properties that a "-hf" config.json must say too, though they follow from the fields -> their keys."""
    ranges: Mapping[str, str] = field(default_factory=dict)
    """Fields of initial ranges that `ssm_cfg` holds under other names -> those names."""
    own: tuple[str, ...] = ()
    """Fields of initial values that no published key says; kept under OWN_KEY."""

    def describes(self, config: Mapping[str, Any]) -> bool:
        """See CheckpointLayout."""
        if "model_type" in config:
            return bool(config["model_type"] == self.hf_type)
        ssm = config.get("ssm_cfg")
        if not isinstance(ssm, Mapping):
            return False
        return bool(ssm["layer"] == self.layer) if "layer" in ssm else self.layer_by_default

    def file_shapes(self, dims: ModelDims, names: Collection[str]) -> dict[str, tuple[int, ...]]:
        """See CheckpointLayout."""
        shapes = shapes_with_head(dims, names)
        return _renamed(shapes, MAMBA_EMBEDDING, _HF_EMBEDDING) if _HF_EMBEDDING in names else shapes

    def canonical(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """See CheckpointLayout."""
        return _renamed(tensors, _HF_EMBEDDING, MAMBA_EMBEDDING)

    def exported(self, tensors: Mapping[str, Any], layout: str) -> dict[str, Any]:
        """See CheckpointLayout."""
        return _renamed(tensors, MAMBA_EMBEDDING, _HF_EMBEDDING) if layout == "hf" else dict(tensors)

    def exported_config(self, dims: ModelDims, layout: str) -> dict[str, Any]:
        """See CheckpointLayout; the published one has no keys but those that mamba_ssm's MambaConfig takes."""
        if layout == "hf":
            return self._hf_config(dims)
        if dims.norm_eps != _PUBLISHED_EPS:
            raise ModelError(
                f"the published layout has no key for the norms' epsilon, which is {dims.norm_eps} here and "
                f"{_PUBLISHED_EPS} there: write --layout hf."
            )
        config = self.config_of(dims)
        del config[OWN_KEY]
        return config

    def _hf_config(self, dims: ModelDims) -> dict[str, Any]:
        fields = {key: getattr(dims, name) for name, key in {**_HF_KEYS, **self.hf_keys, **self.hf_more}.items()}
        names = {"model_type": self.hf_type, "architectures": [self.hf_class]}
        # A head that only pads is a row like any other there.
        return {**names, **fields, "vocab_size": dims.vocab_rows, "residual_in_fp32": True, "rms_norm": True}

    def config_of(self, dims: ModelDims) -> dict[str, Any]:
        """See CheckpointLayout."""
        ssm: dict[str, Any] = {"layer": self.layer, **{key: getattr(dims, key) for key in self.ssm_keys}}
        ssm |= {key: list(getattr(dims, name)) for name, key in self.ranges.items()}
        ssm["dt_min"], ssm["dt_max"] = dims.dt_range  # type: ignore[attr-defined]
        return {
            "d_model": dims.d_model,
            "d_intermediate": 0,
            "n_layer": dims.n_layer,
            "vocab_size": dims.vocab_size,
            "ssm_cfg": ssm,
            "attn_layer_idx": [],
            "attn_cfg": {},
            "rms_norm": True,
            "residual_in_fp32": True,
            "fused_add_norm": True,
            "pad_vocab_size_multiple": dims.pad_vocab_size_multiple,
            "tie_embeddings": dims.tied,
            OWN_KEY: {
                "architecture": dims.ARCHITECTURE,
                **{key: getattr(dims, key) for key in ("norm_eps", "chunk", *self.own)},
            },
        }

    def dims_of(self, config: Mapping[str, Any], where: str) -> ModelDims:
        """See CheckpointLayout; refuses attention, MLP layers and options that are not implemented."""
        if config.get("attn_layer_idx") or config.get("d_intermediate"):
            raise ModelError(f"{where} has attention or MLP layers, which no architecture here has: use a pure Mamba.")
        ssm, is_hf = config.get("ssm_cfg") or {}, "model_type" in config
        keys = {**_HF_KEYS, **self.hf_keys} if is_hf else _KEYS
        missing = [key for key in list(keys.values())[:3] if key not in config]
        if missing:
            raise ModelError(f"{where} lacks {', '.join(missing)}: use a config.json of the state-spaces layout.")
        fields = {name: config[key] for name, key in keys.items() if key in config}
        own = config.get(OWN_KEY) or {}
        fields |= {key: ssm[key] for key in self.ssm_keys if key in ssm}
        fields |= {key: own[key] for key in ("norm_eps", "chunk", *self.own) if key in own}
        fields |= {name: tuple(ssm[key]) for name, key in self.ranges.items() if key in ssm}
        if "dt_min" in ssm and "dt_max" in ssm:
            fields["dt_range"] = (ssm["dt_min"], ssm["dt_max"])
        # A "-hf" vocabulary is the number of embedding rows.
        padded = {"pad_vocab_size_multiple": 1} if is_hf else {}
        fields |= padded | {key: config[key] for key in ("pad_vocab_size_multiple",) if key in config}
        check_supported({**config, **ssm}, _SUPPORTED, where)
        return make_dims(self.dims, fields, where)
