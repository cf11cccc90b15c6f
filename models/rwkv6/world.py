"""The layout of RWKV/rwkv-6-world-*: names, shapes and config.json, there and back; imports no torch by itself.

The World files have other names, matrices that multiply from the right, the five mixes of the token shift as tensors of
their own or in the order w, k, v, r, g, and norms whose epsilon follows from the configuration. Sources:
modeling_rwkv6.py and configuration_rwkv6.py of those repositories, and utils/convert_from_rwkv6.py of
flash-linear-attention.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from models.errors import ModelError
from models.layout import check_supported, make_dims
from models.rwkv6.dims import BRANCHES, Rwkv6Dims

Shape = tuple[int, ...]

_EPS = 1e-5
"""Of every norm of the World classes, before the divisor."""
_LARGEST = 4096
"""Width from which on the World classes double the ranks of mixes and decay."""
_ORDER = (3, 0, 1, 2, 4)
"""Where receptance, decay, key, value and gate stand among the World's w, k, v, r, g."""
_KEYS = {"d_model": "hidden_size", "n_layer": "num_hidden_layers", "vocab_size": "vocab_size"}
_TOP = {
    "model.embeddings.weight": "rwkv.embeddings.weight",
    "model.norm.weight": "rwkv.ln_out.weight",
    "model.norm.bias": "rwkv.ln_out.bias",
    "lm_head.weight": "head.weight",
}


@dataclass(frozen=True)
class _Way:
    """How one kind of tensor is laid out there."""

    shape: Callable[[Shape], Shape]
    """Its shape there from that here."""
    here: Callable[[Any], Any]
    there: Callable[[Any], Any]


def _picked(parts: Any, order: Collection[int]) -> list[Any]:
    return [parts[index] for index in order]


def _back(order: Collection[int]) -> list[int]:
    return sorted(range(BRANCHES), key=lambda place: list(order)[place])


_SAME = _Way(lambda s: s, lambda x: x, lambda x: x)
_ROW = _Way(lambda s: (1, 1, *s), lambda x: x.flatten(), lambda x: x.reshape(1, 1, -1))
_TURNED = _Way(lambda s: s[::-1], lambda x: x.t(), lambda x: x.t())
_MIX_IN = _Way(
    lambda s: s[::-1],
    lambda x: x.t().unflatten(0, (BRANCHES, -1))[list(_ORDER)].flatten(0, 1),
    lambda x: x.unflatten(0, (BRANCHES, -1))[_back(_ORDER)].flatten(0, 1).t(),
)
_MIX_OUT = _Way(
    lambda s: (BRANCHES, s[1] // BRANCHES, s[0]),
    lambda x: x[list(_ORDER)].flatten(0, 1).t(),
    lambda x: x.t().unflatten(0, (BRANCHES, -1))[_back(_ORDER)],
)
_LAYER: dict[str, tuple[str, _Way]] = {
    **{
        f"{ours}.{kind}": (f"{theirs}.{kind}", _SAME)
        for ours, theirs in (
            ("pre_norm", "pre_ln"),
            ("attn_norm", "ln1"),
            ("ffn_norm", "ln2"),
            ("attn.g_norm", "attention.ln_x"),
        )
        for kind in ("weight", "bias")
    },
    "attn.x_proj.0.mu": ("attention.time_maa_x", _ROW),
    "attn.x_proj.0.linear.weight": ("attention.time_maa_w1", _MIX_IN),
    "attn.x_proj.2.weight": ("attention.time_maa_w2", _MIX_OUT),
    "attn.r_proj.linear.weight": ("attention.receptance.weight", _SAME),
    "attn.w_proj.linear.lora.0.weight": ("attention.time_decay_w1", _TURNED),
    "attn.w_proj.linear.lora.2.weight": ("attention.time_decay_w2", _TURNED),
    "attn.w_proj.linear.lora.2.bias": ("attention.time_decay", _ROW),
    "attn.k_proj.linear.weight": ("attention.key.weight", _SAME),
    "attn.v_proj.linear.weight": ("attention.value.weight", _SAME),
    "attn.g_proj.linear.weight": ("attention.gate.weight", _SAME),
    "attn.bonus": ("attention.time_faaaa", _SAME),
    "attn.o_proj.weight": ("attention.output.weight", _SAME),
    "ffn.key.mu": ("feed_forward.time_maa_k", _ROW),
    "ffn.key.linear.weight": ("feed_forward.key.weight", _SAME),
    "ffn.value.weight": ("feed_forward.value.weight", _SAME),
    "ffn.receptance.mu": ("feed_forward.time_maa_r", _ROW),
    "ffn.receptance.linear.weight": ("feed_forward.receptance.weight", _SAME),
}
_BIAS = "attn.x_bias"
_MIXES = tuple(f"attention.time_maa_{branch}" for branch in "rwkvg")
"""The rows of `attn.x_bias`, tensors of their own there."""
_OURS = {theirs: (ours, way) for ours, (theirs, way) in _LAYER.items()}


def is_world(names: Collection[str]) -> bool:
    """Whether a file with these tensors is of that layout."""
    return any(name.startswith("rwkv.") for name in names)


def _split(name: str, start: str) -> tuple[str, str]:
    """The number of the layer and the rest of a name; an empty number for what lies in no layer."""
    number, _, rest = name.removeprefix(start).partition(".")
    return (number, rest) if name.startswith(start) else ("", name)


def shapes_there(name: str, shape: Shape) -> list[tuple[str, Shape]]:
    """Name and shape there of the tensor, or tensors, that are called `name` and have this shape here."""
    layer, rest = _split(name, "model.layers.")
    if not layer:
        return [(_TOP[name], shape)]
    if rest == _BIAS:
        return [(f"rwkv.blocks.{layer}.{mix}", (1, 1, shape[1])) for mix in _MIXES]
    theirs, way = _LAYER[rest]
    return [(f"rwkv.blocks.{layer}.{theirs}", way.shape(shape))]


def from_world(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors of such a file as they are called and laid out here."""
    import torch

    top = {theirs: ours for ours, theirs in _TOP.items()}
    read: dict[str, Any] = {}
    for name, value in tensors.items():
        layer, rest = _split(name, "rwkv.blocks.")
        if not layer:
            read[top[name]] = value
        elif rest in _OURS:
            ours, way = _OURS[rest]
            read[f"model.layers.{layer}.{ours}"] = way.here(value)
        elif rest == _MIXES[0]:
            mixes = [tensors[f"rwkv.blocks.{layer}.{mix}"].flatten() for mix in _MIXES]
            read[f"model.layers.{layer}.{_BIAS}"] = torch.stack(mixes)
    return read


def to_world(name: str, value: Any) -> list[tuple[str, Any]]:
    """Name and value there of the tensor, or tensors, that are called `name` here."""
    layer, rest = _split(name, "model.layers.")
    if not layer:
        return [(_TOP[name], value)]
    if rest == _BIAS:
        return [(f"rwkv.blocks.{layer}.{mix}", row.reshape(1, 1, -1)) for mix, row in zip(_MIXES, value, strict=True)]
    theirs, way = _LAYER[rest]
    return [(f"rwkv.blocks.{layer}.{theirs}", way.there(value))]


def _ranks(d_model: int) -> dict[str, int]:
    """Which the World classes do not configure."""
    return {"mix_rank": 64, "decay_rank": 128} if d_model == _LARGEST else {"mix_rank": 32, "decay_rank": 64}


def world_dims(config: Mapping[str, Any], where: str) -> Any:
    """The dimensions that such a config.json describes; `where` names it in errors. Raises ModelError."""
    missing = [key for key in (*_KEYS.values(), "head_size") if key not in config]
    if missing:
        raise ModelError(f"{where} lacks {', '.join(missing)}: use a config.json of RWKV/rwkv-6-world-*.")
    fields: dict[str, Any] = {name: config[key] for name, key in _KEYS.items()}
    width, head = fields["d_model"], config["head_size"]
    if not isinstance(width, int) or not isinstance(head, int) or head < 1 or width % head:
        raise ModelError(f"{where} has heads of {head!r} channels in a width of {width!r}: copy the checkpoint again.")
    check_supported(config, {"layer_norm_epsilon": _EPS, "attention_hidden_size": (None, width)}, where)
    fields |= {
        "n_heads": width // head,
        "ffn_width": config.get("intermediate_size") or int(width * 3.5) // 32 * 32,
        "tied": config.get("tie_word_embeddings", False),
        "norm_eps": _EPS,
        "head_norm_eps": _EPS * config.get("head_size_divisor", 8) ** 2,
        **_ranks(width),
    }
    return make_dims(Rwkv6Dims, fields, where)


def world_config(dims: Rwkv6Dims) -> dict[str, Any]:
    """The config.json of these dimensions there. Raises ModelError for what it cannot say."""
    divisor = round(math.sqrt(dims.head_norm_eps / _EPS))
    wanted = {
        "expand_k": (dims.expand_k, 1.0),
        "expand_v": (dims.expand_v, 1.0),
        "norm_eps": (dims.norm_eps, _EPS),
        "head_norm_eps": (dims.head_norm_eps, _EPS * divisor**2),
        "ffn_width": (dims.ffn, int(dims.d_model * 3.5) // 32 * 32),
        **{name: (getattr(dims, name), rank) for name, rank in _ranks(dims.d_model).items()},
    }
    for name, (mine, theirs) in wanted.items():
        if not math.isclose(mine, theirs, rel_tol=1e-9):
            raise ModelError(
                f"the layout of the World models has no key for {name}, which is {mine} here and would be {theirs} "
                "there: write --layout hf."
            )
    return {
        "architectures": ["Rwkv6ForCausalLM"],
        "model_type": dims.ARCHITECTURE,
        **{key: getattr(dims, name) for name, key in _KEYS.items()},
        "attention_hidden_size": dims.d_model,
        "head_size": dims.d_model // dims.n_heads,
        "head_size_divisor": divisor,
        "intermediate_size": None,
        "layer_norm_epsilon": _EPS,
        "rescale_every": 6,
        "tie_word_embeddings": dims.tied,
    }
