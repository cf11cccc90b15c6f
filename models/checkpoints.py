"""Writing and reading checkpoints: config.json and weights, with the names of each architecture's published files.

Written is one model.safetensors, read are also parts with an index and pickled weights, of which nothing but tensors is
unpickled. The tied head is not written: a file holds every parameter once. A reader accepts it where it is present.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.architecture import ModelDims
from models.content import CONFIG, SAFETENSORS, TOKENIZER, read_config, weights_files
from models.errors import ModelError
from models.interface import RecurrentLanguageModel
from models.layout import check_shapes, config_from_dims, dims_from_config, fitted_dims, layout_of
from models.registry import model_of


def save_checkpoint(
    model: RecurrentLanguageModel,
    dims: ModelDims,
    folder: str | Path,
    notes: Mapping[str, object] | None = None,
    tokenizer: Path | None = None,
) -> None:
    """Write a checkpoint folder. It appears whole or not at all; one that exists is replaced.

    Args:
        model: whose parameters are written, in their own dtype.
        dims: dimensions of the model.
        folder: created with its parents.
        notes: JSON values kept in config.json beside our own keys, such as the recipe that made the model.
        tokenizer: file that is copied along as tokenizer.json.
    """
    own = {name: value for name, value in model.state_dict().items() if name != dims.HEAD or not dims.tied}
    with whole_folder(folder) as part:
        save_file(plain_tensors(own), part / SAFETENSORS, metadata={"format": "pt"})
        write_config(part, config_from_dims(dims, notes))
        if tokenizer is not None:
            shutil.copyfile(tokenizer, part / TOKENIZER)


def plain_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as files hold them: on the CPU, contiguous, each with memory of its own."""
    return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}


def write_config(folder: Path, config: Mapping[str, object]) -> None:
    """Write config.json."""
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


@contextmanager
def whole_folder(folder: str | Path) -> Iterator[Path]:
    """A new folder to write into, which takes its place, and that of an older one, when all of it is on disk."""
    target = Path(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield part
        for path in part.iterdir():
            with path.open("rb") as file:
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
    kernel: str = "chunked",
) -> RecurrentLanguageModel:
    """Read a checkpoint folder into a model.

    Args:
        folder: holds config.json and weights in any layout that the architecture accepts.
        expected_dims: the model's dimensions, which follow the checkpoint as `fitted_dims` says; those of its
            config.json if None.
        device: where the model is put.
        dtype: of its parameters.
        kernel: that runs its scans, one of `models.kernels.KERNELS` but `auto`.

    Raises:
        ModelError: if files are missing or damaged, or shapes or vocabulary do not fit.
    """
    found = dims_from_config(read_config(folder), str(Path(folder) / CONFIG))
    dims = found if expected_dims is None else fitted_dims(found, expected_dims, str(folder))
    model = model_of(dims, seed=0, kernel=kernel)
    model.load_state_dict(read_tensors(folder, dims))
    return model.to(device=device, dtype=dtype)


def read_tensors(folder: str | Path, dims: ModelDims) -> dict[str, Tensor]:
    """Read all tensors of a checkpoint, the head too, in their own dtype and as `dims` names and shapes them."""
    files = weights_files(folder)
    read: dict[str, Tensor] = {}
    for path in files:
        read |= _read_file(path)
    where = str(folder if len(files) > 1 else files[0])
    check_shapes({name: tuple(value.shape) for name, value in read.items()}, dims, where)
    tensors = layout_of(dims).canonical(read)
    if dims.tied:
        embedding = tensors[dims.EMBEDDING]
        if not torch.equal(tensors.get(dims.HEAD, embedding), embedding):
            raise ModelError(f"{where} has a head of its own ({dims.HEAD}), though its config.json says it is tied.")
        tensors[dims.HEAD] = embedding
    return tensors


def _publish(part: Path, target: Path) -> None:
    """Move a finished folder into place; an older one steps aside first and is then deleted."""
    if not target.exists():
        part.rename(target)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
    target.rename(aside / target.name)
    part.rename(target)
    shutil.rmtree(aside)


def _read_file(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        read = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        # What torch says here is how to run the code of a file that one trusts.
        raise ModelError(
            f"{path} cannot be read (it is damaged, or holds more than tensors, and no code of a checkpoint is ever "
            "run): copy the checkpoint again."
        ) from error
    except Exception as error:  # whatever the bytes of a damaged file make a reader raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"{path} cannot be read ({reason}): copy the checkpoint again.") from error
    if not isinstance(read, dict) or not all(isinstance(value, Tensor) for value in read.values()):
        raise ModelError(f"{path} holds something else than tensors by name: give the folder of a checkpoint.")
    return read
