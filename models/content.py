"""A checkpoint folder as a dry run sees it: found, hashed and checked for its shapes without importing torch.

A checkpoint is a folder with `config.json` (the layout of mamba_ssm, with `architecture` and the dimensions that layout
leaves to defaults beside it) and `model.safetensors` or `pytorch_model.bin`.
"""

import hashlib
import json
import struct
from dataclasses import asdict
from pathlib import Path
from typing import Any

from models.errors import ModelError
from models.sizes import Mamba2Dims

CONFIG = "config.json"
SAFETENSORS = "model.safetensors"
PYTORCH = "pytorch_model.bin"
BASES = Path(__file__).parent / "bases"
"""Checkpoints that travel with this package, one folder each."""
HF_EMBEDDING = "backbone.embeddings.weight"
EMBEDDING = "backbone.embedding.weight"
HEAD = "lm_head.weight"

Shapes = dict[str, tuple[int, ...]]


def shipped_or_folder(name: str) -> Path:
    """The folder of a shipped base of that name, or the folder itself. Raises ModelError when there is neither."""
    shipped = sorted(path.name for path in BASES.iterdir() if path.is_dir()) if BASES.is_dir() else []
    if name in shipped:
        return BASES / name
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise ModelError(
            f"base.checkpoint is {name!r}, which is neither a folder nor a shipped base ({', '.join(shipped)}); "
            "write a folder that holds config.json and model.safetensors"
        )
    return folder.absolute()


def weights_file(folder: Path) -> Path:
    """The file of weights in a checkpoint folder. Raises ModelError when a part of the checkpoint is missing."""
    if not (folder / CONFIG).is_file():
        raise ModelError(f"the checkpoint {folder} has no {CONFIG}; name the folder that holds it beside the weights")
    for name in (SAFETENSORS, PYTORCH):
        if (folder / name).is_file():
            return folder / name
    raise ModelError(f"the checkpoint {folder} has neither {SAFETENSORS} nor {PYTORCH}; put one of them there")


def content_hash(folder: Path) -> str:
    """SHA-256 (hex) over the names and contents of `config.json` and the weights; the folder's place does not matter."""
    total = hashlib.sha256()
    for path in (folder / CONFIG, weights_file(folder)):
        with path.open("rb") as file:
            total.update(f"{path.name}:{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()


def expected_shapes(dims: Mamba2Dims) -> Shapes:
    """Name and shape of every tensor of a Mamba-2 checkpoint, under the published names."""
    shapes: Shapes = {EMBEDDING: (dims.vocab_rows, dims.d_model), "backbone.norm_f.weight": (dims.d_model,)}
    for layer in range(dims.n_layer):
        at = f"backbone.layers.{layer}"
        shapes |= {
            f"{at}.norm.weight": (dims.d_model,),
            f"{at}.mixer.in_proj.weight": (dims.in_proj_rows, dims.d_model),
            f"{at}.mixer.conv1d.weight": (dims.conv_channels, 1, dims.d_conv),
            f"{at}.mixer.conv1d.bias": (dims.conv_channels,),
            f"{at}.mixer.dt_bias": (dims.n_heads,),
            f"{at}.mixer.A_log": (dims.n_heads,),
            f"{at}.mixer.D": (dims.n_heads,),
            f"{at}.mixer.norm.weight": (dims.d_inner,),
            f"{at}.mixer.out_proj.weight": (dims.d_model, dims.d_inner),
        }
    return shapes


def check_shapes(found: Shapes, dims: Mamba2Dims, folder: Path) -> None:
    """Raise a ModelError that names the first tensor that is missing, unknown or of another shape."""
    found = {EMBEDDING if name == HF_EMBEDDING else name: shape for name, shape in found.items() if name != HEAD}
    expected = expected_shapes(dims)
    rows = found.get(EMBEDDING, (0,))[0]
    if EMBEDDING in found and rows != dims.vocab_rows:
        raise ModelError(
            f"the vocabulary of the checkpoint {folder} does not fit: its {EMBEDDING} has {rows} rows, the tokenizer needs "
            f"{dims.vocab_rows}; name a checkpoint that was trained with this tokenizer"
        )
    for name, shape in expected.items():
        if name not in found:
            raise ModelError(f"the checkpoint {folder} has no tensor {name}; model.architecture or model.size is another")
        if found[name] != shape:
            raise ModelError(
                f"the checkpoint {folder} does not fit: {name} has shape {list(found[name])}, the model wants "
                f"{list(shape)}; set model.size to the checkpoint's own"
            )
    unknown = sorted(set(found) - set(expected))
    if unknown:
        raise ModelError(f"the checkpoint {folder} holds {unknown[0]}, which the model has no place for; set model.size")


def safetensors_shapes(path: Path) -> Shapes:
    """Shapes from the header of a safetensors file, without reading its tensors."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > path.stat().st_size:
                raise ValueError("its header is longer than the file")
            header = json.loads(file.read(length))
    except (OSError, ValueError, struct.error) as error:
        raise ModelError(f"{path} is no whole safetensors file ({error}); fetch or write it again") from error
    shapes = {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
    if 8 + length + end != path.stat().st_size:
        raise ModelError(f"{path} is no whole safetensors file (it is cut short); fetch or write it again")
    return shapes


def check_checkpoint(folder: Path, dims: Mamba2Dims) -> None:
    """Raise a ModelError unless the checkpoint's files are whole and its shapes fit `dims`; reads headers only.

    A `pytorch_model.bin` cannot be looked into without torch: it is checked when it is loaded.
    """
    path = weights_file(folder)
    read_config(folder)
    if path.name == SAFETENSORS:
        check_shapes(safetensors_shapes(path), dims, folder)


def read_config(folder: Path) -> dict[str, Any]:
    """The checkpoint's `config.json`."""
    try:
        config: dict[str, Any] = json.loads((folder / CONFIG).read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder / CONFIG} cannot be read ({error}); fetch or write it again") from error
    return config


def config_of(dims: Mamba2Dims, architecture: str) -> dict[str, Any]:
    """`config.json` of a checkpoint: the keys of mamba_ssm, and our own name and dimensions."""
    return {
        "d_model": dims.d_model,
        "d_intermediate": 0,
        "n_layer": dims.n_layer,
        "vocab_size": dims.vocab_size,
        "ssm_cfg": {
            "layer": "Mamba2",
            "d_state": dims.d_state,
            "headdim": dims.headdim,
            "expand": dims.expand,
            "ngroups": dims.ngroups,
            "d_conv": dims.d_conv,
        },
        "attn_layer_idx": [],
        "attn_cfg": {},
        "rms_norm": True,
        "residual_in_fp32": True,
        "fused_add_norm": True,
        "pad_vocab_size_multiple": dims.pad_vocab_size_multiple,
        "tie_embeddings": True,
        "architecture": architecture,
        "dims": asdict(dims),
    }
