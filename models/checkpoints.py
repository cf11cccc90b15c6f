"""Writing and reading checkpoints in the published layout of each architecture: config.json and model.safetensors.

The tied head is not written: a file holds every parameter once. A reader accepts it where it is present.
"""

import json
import os
import pickle
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.architecture import ModelDims
from models.content import CONFIG, SAFETENSORS, read_config, weights_file
from models.errors import ModelError
from models.interface import RecurrentLanguageModel
from models.layout import check_dims, check_shapes, config_from_dims, dims_from_config, layout_of
from models.registry import model_of


def save_checkpoint(
    model: RecurrentLanguageModel, dims: ModelDims, folder: str | Path, notes: Mapping[str, object] | None = None
) -> None:
    """Write a checkpoint folder. It appears whole or not at all; one that exists is replaced.

    Args:
        model: whose parameters are written, in their own dtype.
        dims: dimensions of the model.
        folder: created with its parents.
        notes: JSON values kept in config.json beside our own keys, such as the recipe that made the model.
    """
    target = Path(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    own = {name: value for name, value in model.state_dict().items() if name != dims.HEAD or not dims.tied}
    tensors = {name: value.detach().cpu().contiguous() for name, value in own.items()}
    part = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        save_file(tensors, part / SAFETENSORS, metadata={"format": "pt"})
        (part / CONFIG).write_text(json.dumps(config_from_dims(dims, notes), indent=2) + "\n", encoding="utf-8")
        for name in (SAFETENSORS, CONFIG):
            with (part / name).open("rb") as file:
                os.fsync(file.fileno())
        part.chmod(0o755)
        _publish(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def load_checkpoint(
    folder: str | Path,
    expected_dims: ModelDims | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    scan: str = "chunked",
) -> RecurrentLanguageModel:
    """Read a checkpoint folder into a model.

    Args:
        folder: holds config.json and model.safetensors or pytorch_model.bin, with published or "-hf" names.
        expected_dims: dimensions the checkpoint must have; those of its config.json if None.
        device: where the model is put.
        dtype: of its parameters.
        scan: name of the scan, see `models.registry.SCAN_NAMES`.

    Raises:
        ModelError: if files are missing or damaged, or shapes or vocabulary do not fit.
    """
    path = weights_file(folder)
    found = dims_from_config(read_config(folder), str(Path(folder) / CONFIG))
    dims = found if expected_dims is None else expected_dims
    check_dims(found, dims, str(folder))
    tensors = {layout_of(dims).canonical_name(name): value for name, value in _read_tensors(path).items()}
    check_shapes({name: tuple(value.shape) for name, value in tensors.items()}, dims, str(path))
    if dims.tied:
        embedding = tensors[dims.EMBEDDING]
        if not torch.equal(tensors.get(dims.HEAD, embedding), embedding):
            raise ModelError(f"{path} has a head of its own ({dims.HEAD}), though its config.json says it is tied.")
        tensors[dims.HEAD] = embedding
    model = model_of(dims, seed=0, scan=scan)
    model.load_state_dict(tensors)
    return model.to(device=device, dtype=dtype)


def _publish(part: Path, target: Path) -> None:
    """Move a finished folder into place; an older one steps aside first and is then deleted."""
    if not target.exists():
        part.rename(target)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
    target.rename(aside / target.name)
    part.rename(target)
    shutil.rmtree(aside)


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        if path.name == SAFETENSORS:
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        raise ModelError(f"{path} cannot be read ({str(error).splitlines()[0]}): copy the checkpoint again.") from error
