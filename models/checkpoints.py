"""Reading and writing checkpoints: safetensors or a pickled state dict without code, under the published names."""

import json
import os
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from models.content import (
    CONFIG,
    EMBEDDING,
    HEAD,
    HF_EMBEDDING,
    SAFETENSORS,
    check_shapes,
    config_of,
    read_config,
    weights_file,
)
from models.errors import ModelError
from models.interface import RecurrentLanguageModel
from models.registry import build_model
from models.settings import ModelSettings
from models.sizes import Mamba2Dims, dims


def save_checkpoint(model: RecurrentLanguageModel, size: Mamba2Dims, folder: Path, architecture: str = "mamba2") -> None:
    """Write `model.safetensors` and `config.json` into `folder`; each file is whole or absent. Tied weights once."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items() if name != HEAD}
    partial = folder / f"{SAFETENSORS}.partial"
    save_file(tensors, partial, metadata={"format": "pt"})
    os.replace(partial, folder / SAFETENSORS)
    partial = folder / f"{CONFIG}.partial"
    partial.write_text(json.dumps(config_of(size, architecture), indent=2) + "\n")
    os.replace(partial, folder / CONFIG)


def load_checkpoint(
    folder: Path,
    settings: ModelSettings,
    vocab_size: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> RecurrentLanguageModel:
    """The model of `settings` with the checkpoint's weights.

    Raises ModelError when a file is missing or damaged, or a shape or the vocabulary does not fit.
    """
    size = dims(settings.architecture, settings.size, vocab_size)
    read_config(folder)
    tensors = _read_tensors(weights_file(folder))
    if HF_EMBEDDING in tensors:
        tensors[EMBEDDING] = tensors.pop(HF_EMBEDDING)
    check_shapes({name: tuple(tensor.shape) for name, tensor in tensors.items()}, size, folder)
    tensors[HEAD] = tensors[EMBEDDING]
    model = build_model(settings, vocab_size, seed=0)
    model.load_state_dict(tensors)
    return model.to(device=device, dtype=dtype)


def _read_tensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        if path.name == SAFETENSORS:
            return load_file(path)
        tensors: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
        return tensors
    except Exception as error:
        raise ModelError(f"{path} cannot be read ({type(error).__name__}: {error}); fetch or write it again") from error
