"""The layout of Mamba-2 checkpoints: config.json to dimensions and back, tensor names and shapes; imports no torch.

Two layouts are read: that of the state-spaces/mamba2 checkpoints, which is the one written here, and that of their
"-hf" conversions, which differ in the keys of config.json and in the name of the embedding.
"""

from collections.abc import Mapping
from typing import Any

from models.errors import ModelError
from models.sizes import Mamba2Dims

OWN_KEY = "initial_state_sweeps"
"""Key of config.json that holds what the published layout has no place for."""
EMBEDDING = "backbone.embedding.weight"
HEAD = "lm_head.weight"
"""Present in published files though tied to the embedding; not written here."""
_RENAMED = {"backbone.embeddings.weight": EMBEDDING}

_PUBLISHED_KEYS = {"d_model": "d_model", "n_layer": "n_layer", "vocab_size": "vocab_size"}
_HF_KEYS = {
    "d_model": "hidden_size",
    "n_layer": "num_hidden_layers",
    "vocab_size": "vocab_size",
    "d_state": "state_size",
    "headdim": "head_dim",
    "expand": "expand",
    "ngroups": "n_groups",
    "d_conv": "conv_kernel",
    "norm_eps": "layer_norm_epsilon",
}
_SSM_KEYS = ("d_state", "headdim", "expand", "ngroups", "d_conv")
_SUPPORTED: dict[str, Any] = {
    "tie_embeddings": True,
    "tie_word_embeddings": True,
    "rms_norm": True,
    "norm_before_gate": False,
    "rmsnorm": True,
    "D_has_hdim": False,
    "bias": False,
    "conv_bias": True,
    "use_conv_bias": True,
    "use_bias": False,
}
"""Options of either layout that change what a model computes, with the only value that is implemented here."""
_SHAPE_FIELDS = ("d_model", "n_layer", *_SSM_KEYS)


def canonical_name(name: str) -> str:
    """Return the name that a tensor of either layout has here."""
    return _RENAMED.get(name, name)


def config_from_dims(dims: Mamba2Dims, notes: Mapping[str, object] | None = None) -> dict[str, Any]:
    """Return the config.json of a checkpoint, in the published layout plus OWN_KEY with `notes`."""
    ssm: dict[str, Any] = {"layer": "Mamba2", **{key: getattr(dims, key) for key in _SSM_KEYS}}
    ssm |= {"A_init_range": list(dims.a_init_range), "dt_min": dims.dt_range[0], "dt_max": dims.dt_range[1]}
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
        "tie_embeddings": True,
        OWN_KEY: {"architecture": "mamba2", "norm_eps": dims.norm_eps, "chunk": dims.chunk, **(notes or {})},
    }


def dims_from_config(config: Mapping[str, Any], where: str) -> Mamba2Dims:
    """Return the dimensions that a config.json describes; `where` names it in errors.

    Raises:
        ModelError: if it does not describe a tied Mamba-2 without attention or MLP layers, or lacks a key.
    """
    is_hf = config.get("model_type") == "mamba2"
    ssm = config.get("ssm_cfg") or {}
    if not isinstance(ssm, Mapping):
        raise ModelError(f"{where} has ssm_cfg = {ssm!r}, which is no table: copy the checkpoint again.")
    if not is_hf and ssm.get("layer") != "Mamba2":
        raise ModelError(
            f"{where} does not describe a Mamba-2: its ssm_cfg.layer is {ssm.get('layer')!r}, not 'Mamba2'."
        )
    if config.get("attn_layer_idx") or config.get("d_intermediate"):
        raise ModelError(f"{where} has attention or MLP layers, which no architecture here has: use a pure Mamba-2.")
    keys = _HF_KEYS if is_hf else _PUBLISHED_KEYS
    missing = [key for key in list(keys.values())[:3] if key not in config]
    if missing:
        raise ModelError(f"{where} lacks {', '.join(missing)}: use a config.json of the state-spaces/mamba2 layout.")
    fields = {field: config[key] for field, key in keys.items() if key in config}
    own = config.get(OWN_KEY) or {}
    fields |= {key: ssm[key] for key in _SSM_KEYS if key in ssm}
    fields |= {key: own[key] for key in ("norm_eps", "chunk") if key in own}
    if "A_init_range" in ssm:
        fields["a_init_range"] = tuple(ssm["A_init_range"])
    if "dt_min" in ssm and "dt_max" in ssm:
        fields["dt_range"] = (ssm["dt_min"], ssm["dt_max"])
    fields["pad_vocab_size_multiple"] = config.get("pad_vocab_size_multiple", 16)
    _refuse_other_kinds(config, ssm, where)
    try:
        return Mamba2Dims(**fields)
    except (TypeError, ArithmeticError) as error:
        raise ModelError(f"{where} holds senseless dimensions ({error}): copy the checkpoint again.") from error


def _refuse_other_kinds(config: Mapping[str, Any], ssm: Mapping[str, Any], where: str) -> None:
    """Raise a ModelError for an option that changes what the model computes and that our Mamba-2 does not have."""
    options = {**config, **ssm}
    for name, supported in _SUPPORTED.items():
        if name in options and options[name] != supported:
            raise ModelError(f"{where} has {name} = {options[name]!r}, but only {supported!r} is supported here.")


def tensor_shapes(dims: Mamba2Dims) -> dict[str, tuple[int, ...]]:
    """Return every tensor name and shape of a checkpoint; the tied head is left out."""
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (dims.vocab_rows, dims.d_model)}
    for layer in range(dims.n_layer):
        mixer = f"backbone.layers.{layer}.mixer"
        shapes |= {
            f"backbone.layers.{layer}.norm.weight": (dims.d_model,),
            f"{mixer}.in_proj.weight": (dims.in_proj_rows, dims.d_model),
            f"{mixer}.conv1d.weight": (dims.conv_channels, 1, dims.d_conv),
            f"{mixer}.conv1d.bias": (dims.conv_channels,),
            f"{mixer}.dt_bias": (dims.n_heads,),
            f"{mixer}.A_log": (dims.n_heads,),
            f"{mixer}.D": (dims.n_heads,),
            f"{mixer}.norm.weight": (dims.d_inner,),
            f"{mixer}.out_proj.weight": (dims.d_model, dims.d_inner),
        }
    return shapes | {"backbone.norm_f.weight": (dims.d_model,)}


def check_dims(found: Mamba2Dims, expected: Mamba2Dims, where: str) -> None:
    """Raise a ModelError if a checkpoint's dimensions are not those of the model that is to read it."""
    if found.norm_eps != expected.norm_eps:
        raise ModelError(f"{where} has norm_eps = {found.norm_eps}, but the chosen model has {expected.norm_eps}.")
    for field in _SHAPE_FIELDS:
        if getattr(found, field) != getattr(expected, field):
            raise ModelError(
                f"{where} has {field} = {getattr(found, field)}, but the chosen model has {getattr(expected, field)}: "
                f"set model.size to the size of this checkpoint."
            )
    if found.vocab_size not in (expected.vocab_size, expected.vocab_rows):
        raise ModelError(
            f"{where} has a vocabulary of {found.vocab_size}, but the tokenizer has {expected.vocab_size} entries: "
            f"set data.tokenizer to the one this checkpoint was trained with."
        )


def check_shapes(found: Mapping[str, tuple[int, ...]], expected: Mamba2Dims, where: str) -> None:
    """Raise a ModelError that names the first tensor that is missing, unknown or of another shape."""
    named = {canonical_name(name): tuple(shape) for name, shape in found.items()}
    wanted = tensor_shapes(expected)
    for name, shape in {**wanted, HEAD: wanted[EMBEDDING]}.items():
        if name not in named:
            if name == HEAD:
                continue
            raise ModelError(f"{where} lacks the tensor {name} {shape}: set model.size to the size of this checkpoint.")
        if named[name] != shape:
            setting = "data.tokenizer to its tokenizer" if name in (EMBEDDING, HEAD) else "model.size to its size"
            raise ModelError(
                f"{where}: tensor {name} has shape {named[name]}, but the chosen model needs {shape}: set {setting}."
            )
    unknown = sorted(named.keys() - wanted.keys() - {HEAD})
    if unknown:
        raise ModelError(
            f"{where} has a tensor {unknown[0]} that the chosen model has not: set model.size to its size."
        )
