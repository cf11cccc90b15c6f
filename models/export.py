"""Checkpoints for readers elsewhere: `python -m models.export FOLDER OUT --layout published|hf`.

`published` is what the published files of an architecture look like: for the Mambas config.json and pytorch_model.bin
of state-spaces/mamba-*, as mamba_ssm reads them; for RWKV-6 those of RWKV/rwkv-6-world-*; for GLA those of fla-hub.
`hf` is what the classes of transformers (the Mambas) and of flash-linear-attention (GLA, RWKV-6) read. No tensor is
changed: read again, every one is bit-equal and in its own dtype. Exit code 2 and one sentence where a layout cannot say
what a model is.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from models.architecture import LAYOUTS, ModelDims
from models.checkpoints import plain_tensors, read_tensors, whole_folder, write_config
from models.content import CONFIG, PYTORCH_BIN, SAFETENSORS, TOKENIZER, read_config
from models.errors import ModelError
from models.layout import OWN_KEY, dims_from_config, layout_of

NOTES = "made_by.json"
"""What our config.json says beside the layout's own keys, kept beside the export."""
DONE, USAGE_ERROR = 0, 2


def export_checkpoint(folder: str | Path, out: str | Path, layout: str) -> Path:
    """Write the checkpoint in `folder` to `out` in one of LAYOUTS; return the file of weights.

    The tokenizer.json beside it is copied along. `out` appears whole or not at all. Raises ModelError.
    """
    if layout not in LAYOUTS:
        raise ModelError(f"--layout is {layout!r}: write {' or '.join(LAYOUTS)}.")
    if Path(out).exists():
        raise ModelError(f"{out} is there already: write another folder, or remove it.")
    config = read_config(folder)
    dims = dims_from_config(config, str(Path(folder) / CONFIG))
    exported = layout_of(dims).exported_config(dims, layout)
    tensors = read_tensors(folder, dims)
    with whole_folder(out) as part:
        name = _write_weights(part, dims, layout, tensors)
        write_config(part, exported | _dtype_of(tensors, layout))
        if config.get(OWN_KEY):
            (part / NOTES).write_text(json.dumps(config[OWN_KEY], indent=2) + "\n", encoding="utf-8")
        if (Path(folder) / TOKENIZER).is_file():
            shutil.copyfile(Path(folder) / TOKENIZER, part / TOKENIZER)
    return Path(out) / name


def _write_weights(part: Path, dims: ModelDims, layout: str, tensors: Mapping[str, Tensor]) -> str:
    """Write the weights as readers of that layout look for them; return the name of the file."""
    exported = layout_of(dims).exported
    if layout == "published" and dims.ARCHITECTURE in ("mamba1", "mamba2"):
        # mamba_ssm reads this file alone, and wants the tied head in it. Both names keep one memory there.
        torch.save({name: value.detach() for name, value in exported(tensors, layout).items()}, part / PYTORCH_BIN)
        return PYTORCH_BIN
    own = {name: value for name, value in tensors.items() if name != dims.HEAD or not dims.tied}
    save_file(plain_tensors(exported(own, layout)), part / SAFETENSORS, metadata={"format": "pt"})
    return SAFETENSORS


def _dtype_of(tensors: Mapping[str, Tensor], layout: str) -> dict[str, Any]:
    """The dtype that transformers builds a model in; without it bf16 weights would be read as fp32."""
    dtypes = {value.dtype for value in tensors.values()}
    named = layout == "hf" and len(dtypes) == 1
    return {"torch_dtype": str(dtypes.pop()).removeprefix("torch.")} if named else {}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    flags = argparse.ArgumentParser(prog="python -m models.export", description="Write a checkpoint for others.")
    flags.add_argument("folder", type=Path, metavar="FOLDER", help="holds config.json and weights")
    flags.add_argument("out", type=Path, metavar="OUT", help="new folder")
    flags.add_argument("--layout", choices=LAYOUTS, required=True, help="names and files of the export")
    given = flags.parse_args(arguments)
    try:
        written = export_checkpoint(given.folder, given.out, given.layout)
    except ModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE_ERROR
    except OSError as error:
        print(f"error: {given.out} cannot be written ({error.strerror}): write another folder.", file=sys.stderr)
        return USAGE_ERROR
    print(written)
    return DONE


if __name__ == "__main__":
    sys.exit(main())
