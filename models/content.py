"""What lies in a checkpoint folder, read without torch: its hash, its configuration, and whether it fits a model.

A dry run checks a checkpoint with this module, from config.json and the header of model.safetensors alone.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from models.architecture import ModelDims
from models.errors import ModelError
from models.layout import check_dims, check_shapes, dims_from_config

CONFIG = "config.json"
SAFETENSORS = "model.safetensors"
PYTORCH_BIN = "pytorch_model.bin"
_LONGEST_HEADER = 100_000_000
"""Bytes; the limit of the safetensors format."""


def weights_file(folder: str | Path) -> Path:
    """Return the file of weights in a checkpoint folder, safetensors first.

    Raises:
        ModelError: if the folder holds none.
    """
    for name in (SAFETENSORS, PYTORCH_BIN):
        if (Path(folder) / name).is_file():
            return Path(folder) / name
    raise ModelError(f"{folder} holds neither {SAFETENSORS} nor {PYTORCH_BIN}: give the folder of a checkpoint.")


def read_config(folder: str | Path) -> dict[str, Any]:
    """Return the config.json of a checkpoint folder; a ModelError if it is missing or no JSON object."""
    path = Path(folder) / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}): give the folder of a checkpoint.") from error
    except ValueError as error:
        raise ModelError(f"{path} is no valid JSON ({error}): copy the checkpoint again.") from error
    if not isinstance(config, dict):
        raise ModelError(f"{path} holds no JSON object: copy the checkpoint again.")
    return config


def content_hash(folder: str | Path) -> str:
    """Return the sha256 (hex) of a checkpoint's weights and configuration, whatever the folder's name or place."""
    digest = hashlib.sha256()
    read_config(folder)
    for path in (Path(folder) / CONFIG, weights_file(folder)):
        with path.open("rb") as file:
            part = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.name} {part}\n".encode())
    return digest.hexdigest()


def read_header(path: Path) -> dict[str, tuple[int, ...]]:
    """Return tensor name -> shape of a safetensors file from its header; a ModelError if the file is cut or damaged."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _LONGEST_HEADER):
            raise ModelError(f"{path} is no whole safetensors file: copy the checkpoint again.")
        try:
            header = json.loads(file.read(length))
            entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
            shapes = {name: tuple(int(n) for n in entry["shape"]) for name, entry in entries.items()}
            end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{path} has a damaged safetensors header: copy the checkpoint again.") from error
    if 8 + length + end != size:
        raise ModelError(
            f"{path} has {size} bytes where its header needs {8 + length + end}: copy the checkpoint again."
        )
    return shapes


def check_checkpoint(folder: str | Path, dims: ModelDims) -> None:
    """Raise a ModelError unless the checkpoint in `folder` fits `dims`.

    A pytorch_model.bin has no header: for it only config.json is checked here, its tensors when it is loaded.
    """
    weights = weights_file(folder)
    check_dims(dims_from_config(read_config(folder), str(Path(folder) / CONFIG)), dims, str(folder))
    if weights.name == SAFETENSORS:
        check_shapes(read_header(weights), dims, str(weights))
