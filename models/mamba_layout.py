"""The layout of the state-spaces checkpoints of both Mambas: config.json to dimensions and back; imports no torch.

Two layouts are read: that of state-spaces/mamba-* and mamba2-*, which is the one written here, and that of their "-hf"
conversions, which differ in the keys of config.json and in the name of the embedding.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from models.architecture import ModelDims
from models.errors import ModelError
from models.layout import OWN_KEY, check_supported, make_dims

MAMBA_EMBEDDING = "backbone.embedding.weight"
_RENAMED = {"backbone.embeddings.weight": MAMBA_EMBEDDING}
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
    hf_keys: Mapping[str, str]
    """Field -> key of the "-hf" layout, beside those that both Mambas have."""
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

    def canonical_name(self, name: str) -> str:
        """See CheckpointLayout."""
        return _RENAMED.get(name, name)

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
