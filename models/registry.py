"""Which architectures there are. A new one is a module that holds ARCHITECTURE, and a line here; imports no torch."""

import importlib
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from models.architecture import Architecture, ModelDims
from models.errors import ModelError
from models.kernels import FUSED, INSTALL, KERNELS, fused_lacks, kernel_versions, resolved_kernel
from models.settings import ModelSettings

if TYPE_CHECKING:
    from models.interface import RecurrentLanguageModel

ARCHITECTURES: dict[str, str] = {
    "mamba1": "models.mamba1",
    "mamba2": "models.mamba2",
    "gla": "models.gla",
    "rwkv6": "models.rwkv6",
}
"""Name -> module with an `ARCHITECTURE`."""


def architecture(name: str) -> Architecture:
    """The architecture of that name. Raises a ModelError that names the nearest known one."""
    _check_name("model.architecture", name, tuple(ARCHITECTURES))
    found: Architecture = importlib.import_module(ARCHITECTURES[name]).ARCHITECTURE
    return found


def dims(architecture_name: str, size: str, vocab_size: int | None = None) -> ModelDims:
    """Return the dimensions of a size preset.

    Args:
        architecture_name: a name of `ARCHITECTURES`.
        size: a preset of that architecture.
        vocab_size: entries of the tokenizer in use; the preset's own if None.

    Raises:
        ModelError: for an unknown name, naming the nearest known one.
    """
    sizes = architecture(architecture_name).sizes
    _check_name("model.size", size, tuple(sizes))
    return sizes[size] if vocab_size is None else replace(sizes[size], vocab_size=vocab_size)


def check_model_names(settings: ModelSettings) -> None:
    """Raise a ModelError that names the nearest known name if architecture, size or kernel is unknown."""
    dims(settings.architecture, settings.size)
    _check_name("model.kernel", settings.kernel, KERNELS)


def kernel_of(settings: ModelSettings, device: str) -> str:
    """The form of the scan that runs: `model.kernel`, with `auto` resolved by `trial.device`, never by the machine."""
    return resolved_kernel(settings.kernel, device, architecture(settings.architecture).fused_packages)


def kernel_record(name: str, kernel: str) -> dict[str, str]:
    """Package -> version of what the architecture `name` ran by that kernel; empty but for `fused`."""
    return kernel_versions(architecture(name).fused_packages) if kernel == FUSED else {}


def fused_lacks_here(name: str, gpus: int | None = None) -> str:
    """What the fused scan of the architecture `name` lacks here, see `fused_lacks`; a ModelError if it has none."""
    packages = architecture(name).fused_packages
    if not packages:
        raise ModelError(f"{name} has no fused scan: write model.kernel=chunked.")
    return fused_lacks(packages, gpus)


def build_model(settings: ModelSettings, vocab_size: int, seed: int, device: str = "cpu") -> "RecurrentLanguageModel":
    """Build a freshly initialised model on the CPU in fp32.

    Args:
        settings: architecture, size and kernel.
        vocab_size: entries of the tokenizer in use.
        seed: the initial parameters are a function of this and the dimensions alone.
        device: `trial.device`, by which the kernel `auto` is chosen; the model stays on the CPU.
    """
    return model_of(dims(settings.architecture, settings.size, vocab_size), seed, kernel_of(settings, device))


def model_of(size: ModelDims, seed: int, kernel: str = "chunked") -> "RecurrentLanguageModel":
    """Build a freshly initialised model of these dimensions; imports its module, and torch with it.

    `kernel` is one of `KERNELS` but `auto`. Raises a ModelError where `fused` lacks a package.
    """
    if kernel == FUSED and (lacking := fused_lacks_here(size.ARCHITECTURE)):
        raise ModelError(f"the fused scan of {size.ARCHITECTURE} needs {lacking}: {INSTALL}.")
    module, name = architecture(size.ARCHITECTURE).model.split(":")
    build: Callable[[ModelDims, int, str], RecurrentLanguageModel] = getattr(importlib.import_module(module), name)
    return build(size, seed, kernel)


def _check_name(setting: str, name: str, known: tuple[str, ...]) -> None:
    if name in known:
        return
    near = get_close_matches(str(name).lower(), known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(known)}."
    raise ModelError(f"{setting} = {name!r} is unknown: {hint}")
