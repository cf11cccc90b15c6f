"""What lies in a checkpoint folder, read without torch: its hash, its configuration, and whether it fits a model.

A dry run checks a checkpoint with this module, from config.json and the headers of safetensors files alone.
"""

import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from models.architecture import ModelDims
from models.errors import ModelError
from models.layout import check_shapes, dims_from_config, fitted_dims

CONFIG = "config.json"
SAFETENSORS = "model.safetensors"
PYTORCH_BIN = "pytorch_model.bin"
TOKENIZER = "tokenizer.json"
INDEX = ".index.json"
"""Ending of the file that says which tensor lies in which part of weights that are cut into several files."""
_LONGEST_HEADER = 100_000_000
"""Bytes; the limit of the safetensors format."""


def choose_weights(names: Collection[str], where: str) -> list[str]:
    """Return which of these files hold the weights: one file, or an index and its parts, safetensors first.

    `where` names the place in errors. Raises ModelError if there are none.
    """
    for whole in (SAFETENSORS, PYTORCH_BIN):
        if whole in names:
            return [whole]
        if whole + INDEX in names:
            stem, ending = whole.split(".")
            return sorted(one for one in names if "/" not in one and one.startswith(stem) and one.endswith(ending)) + [
                whole + INDEX
            ]
    raise ModelError(f"{where} holds neither {SAFETENSORS} nor {PYTORCH_BIN}: give the folder of a checkpoint.")


def weights_files(folder: str | Path) -> list[Path]:
    """Return the files of weights in a checkpoint folder: one, or the parts that its index names; safetensors first.

    Raises:
        ModelError: if the folder holds none, or a part of them is missing.
    """
    there = [path.name for path in Path(folder).iterdir() if path.is_file()] if Path(folder).is_dir() else []
    last = Path(folder) / choose_weights(there, str(folder))[-1]
    return [last] if not last.name.endswith(INDEX) else _parts(last)


def _parts(index: Path) -> list[Path]:
    """The files that an index names, in the order of their names."""
    table = _read_object(index).get("weight_map")
    if not isinstance(table, dict) or not table or not all(isinstance(name, str) for name in table.values()):
        raise ModelError(f"{index} has no weight_map from tensors to files: copy the checkpoint again.")
    ending = "." + index.name.removesuffix(INDEX).split(".")[1]
    parts = [index.with_name(name) for name in sorted(set(table.values())) if Path(name).name == name]
    if len(parts) < len(set(table.values())) or any(part.suffix != ending for part in parts):
        raise ModelError(f"{index} names files that are no {ending} files beside it: copy the checkpoint again.")
    for part in parts:
        if not part.is_file():
            raise ModelError(f"{index.parent} lacks {part.name}, which {index.name} names: copy the checkpoint again.")
    return parts


def read_config(folder: str | Path) -> dict[str, Any]:
    """Return the config.json of a checkpoint folder; a ModelError if it is missing or no JSON object."""
    return _read_object(Path(folder) / CONFIG)


def _read_object(path: Path) -> dict[str, Any]:
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
    for path in (Path(folder) / CONFIG, *weights_files(folder)):
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

    Pickled weights have no header: for them only config.json is checked here, their tensors when they are loaded.
    """
    files = weights_files(folder)
    found = dims_from_config(read_config(folder), str(Path(folder) / CONFIG))
    fitted = fitted_dims(found, dims, str(folder))
    if files[0].suffix == ".safetensors":
        shapes: dict[str, tuple[int, ...]] = {}
        for path in files:
            shapes |= read_header(path)
        check_shapes(shapes, fitted, str(folder if len(files) > 1 else files[0]))
