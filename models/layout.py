"""Checkpoints in general: which architecture a config.json describes, and whether dimensions and tensors fit.

Imports no torch. How an architecture's own files read is in its CheckpointLayout; PlainLayout serves one that has no
published files.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from models.architecture import Architecture, CheckpointLayout, ModelDims
from models.errors import ModelError
from models.registry import ARCHITECTURES, architecture

PADDINGS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Multiples that vocabularies are rounded up to, in config.json or in the embedding."""
FOLLOWED = frozenset({"norm_eps", "tied"})
"""Fields that are not a model's size, in which it follows its checkpoint."""
OWN_KEY = "initial_state_sweeps"
"""Key of config.json that holds what the published layout has no place for."""


@dataclass(frozen=True, kw_only=True)
class PlainLayout:
    """Dimensions under their own names, for an architecture without published checkpoints; see CheckpointLayout."""

    dims: type[ModelDims]

    def describes(self, config: Mapping[str, Any]) -> bool:
        """See CheckpointLayout."""
        return bool(config.get("model_type") == self.dims.ARCHITECTURE)

    def file_shapes(self, dims: ModelDims, names: Collection[str]) -> dict[str, tuple[int, ...]]:
        """See CheckpointLayout."""
        return shapes_with_head(dims, names)

    def canonical(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """See CheckpointLayout."""
        return dict(tensors)

    def exported_config(self, dims: ModelDims, layout: str) -> dict[str, Any]:
        """See CheckpointLayout."""
        raise ModelError(f"a {dims.ARCHITECTURE} has no layout that is read elsewhere: use the folder as it is.")

    def exported(self, tensors: Mapping[str, Any], layout: str) -> dict[str, Any]:
        """See CheckpointLayout."""
        return dict(tensors)

    def config_of(self, dims: ModelDims) -> dict[str, Any]:
        """See CheckpointLayout."""
        return {"model_type": dims.ARCHITECTURE, **asdict(dims)}

    def dims_of(self, config: Mapping[str, Any], where: str) -> ModelDims:
        """See CheckpointLayout."""
        known = {field.name for field in fields(self.dims)}
        values: dict[str, Any] = {
            key: tuple(v) if isinstance(v, list) else v for key, v in config.items() if key in known
        }
        return make_dims(self.dims, values, where)


def described_architecture(config: Mapping[str, Any], where: str) -> Architecture:
    """Return the architecture that a config.json describes. Raises ModelError if it is none of those known."""
    for name in ARCHITECTURES:
        found = architecture(name)
        if found.layout.describes(config):
            return found
    kind = config.get("model_type") or (config.get("ssm_cfg") or "neither model_type nor ssm_cfg")
    raise ModelError(
        f"{where} describes no architecture that is known here ({kind}): use a checkpoint of one of "
        f"{', '.join(ARCHITECTURES)}."
    )


def dims_from_config(config: Mapping[str, Any], where: str) -> ModelDims:
    """Return the dimensions that a config.json describes; `where` names it in errors. Raises ModelError."""
    if "ssm_cfg" in config and not isinstance(config["ssm_cfg"], Mapping):
        raise ModelError(f"{where} has ssm_cfg = {config['ssm_cfg']!r}, which is no table: copy the checkpoint again.")
    return described_architecture(config, where).layout.dims_of(config, where)


def config_from_dims(dims: ModelDims, notes: Mapping[str, object] | None = None) -> dict[str, Any]:
    """Return the config.json of a checkpoint, in its architecture's layout, with `notes` under OWN_KEY."""
    config = layout_of(dims).config_of(dims)
    return {**config, OWN_KEY: {**config.get(OWN_KEY, {}), **(notes or {})}}


def layout_of(dims: ModelDims) -> CheckpointLayout:
    """The layout that checkpoints of these dimensions have."""
    return architecture(dims.ARCHITECTURE).layout


def make_dims(kind: type[ModelDims], fields: Mapping[str, Any], where: str) -> ModelDims:
    """Return the dimensions with these fields; a ModelError where a config.json, named by `where`, holds no such."""
    try:
        return kind(**fields)
    except (TypeError, ArithmeticError) as error:
        raise ModelError(f"{where} holds senseless dimensions ({error}): copy the checkpoint again.") from error


def check_supported(config: Mapping[str, Any], supported: Mapping[str, Any], where: str) -> None:
    """Raise a ModelError for an option that changes what a model computes and that is not implemented here.

    `supported` holds for each such option the value that is, or a tuple of values.
    """
    for name, value in supported.items():
        if name in config and config[name] not in (value if isinstance(value, tuple) else (value,)):
            raise ModelError(f"{where} has {name} = {config[name]!r}, but only {value!r} is supported here.")


def shapes_with_head(dims: ModelDims, names: Collection[str]) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a file that holds `names`: a tied head may be among them or not."""
    shapes = dims.tensor_shapes()
    return {**shapes, dims.HEAD: shapes[dims.EMBEDDING]} if dims.HEAD in names else shapes


def fitted_dims(found: ModelDims, expected: ModelDims, where: str) -> ModelDims:
    """Return the dimensions of the model that is to read a checkpoint: those expected, as the checkpoint has them.

    The size must be the expected one. The epsilon of the norms, a head of its own and the padding of the embedding are
    the checkpoint's. Raises ModelError.
    """
    if found.ARCHITECTURE != expected.ARCHITECTURE:
        raise ModelError(
            f"{where} is a {found.ARCHITECTURE}, but the chosen model a {expected.ARCHITECTURE}: set "
            f"model.architecture={found.ARCHITECTURE}."
        )
    entries = expected.vocab_size
    padding = [one for one in PADDINGS if -(-entries // one) * one == found.vocab_rows]
    if not padding or not any(-(-entries // one) * one == found.vocab_size for one in PADDINGS):
        raise ModelError(
            f"{where} has a vocabulary of {found.vocab_size}, but the tokenizer has {entries} entries: "
            f"set data.tokenizer to the one this checkpoint was trained with."
        )
    for field in fields(expected):
        if field.name in expected.FREE | FOLLOWED or field.name in ("vocab_size", "chunk", "pad_vocab_size_multiple"):
            continue
        mine, theirs = getattr(expected, field.name), getattr(found, field.name)
        if mine != theirs:
            raise ModelError(
                f"{where} has {field.name} = {theirs}, but the chosen model has {mine}: "
                f"{expected.ADVICE.get(field.name, 'set model.size to the size of this checkpoint')}."
            )
    followed = {name: getattr(found, name) for name in FOLLOWED}
    multiple = found.pad_vocab_size_multiple if found.pad_vocab_size_multiple in padding else padding[0]
    return replace(expected, pad_vocab_size_multiple=multiple, **followed)


def check_shapes(found: Mapping[str, tuple[int, ...]], expected: ModelDims, where: str) -> None:
    """Raise a ModelError that names the first tensor of a file that is missing, unknown or of another shape."""
    wanted = layout_of(expected).file_shapes(expected, found.keys())
    for name, shape in wanted.items():
        if name not in found:
            raise ModelError(f"{where} lacks the tensor {name} {shape}: set model.size to the size of this checkpoint.")
        if tuple(found[name]) != shape:
            is_vocabulary = shape[0] == expected.vocab_rows and found[name][1:] == shape[1:]
            setting = "data.tokenizer to its tokenizer" if is_vocabulary else "model.size to its size"
            raise ModelError(
                f"{where}: tensor {name} has shape {found[name]}, but the chosen model needs {shape}: set {setting}."
            )
    unknown = sorted(found.keys() - wanted.keys())
    if unknown:
        raise ModelError(
            f"{where} has a tensor {unknown[0]} that the chosen model has not: set model.size to its size."
        )
