"""Which form of its scan a model runs, and what the fused forms need; imports no torch.

A kernel is chosen by settings alone, never by looking at the machine: a trial is the same trial wherever it runs.
"""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from models.errors import ModelError

CPU_KERNELS = ("chunked", "naive")
"""Forms that run anywhere: matrix form, and the loop over time that says what is meant."""
FUSED = "fused"
KERNELS = ("auto", "chunked", FUSED, "naive")
"""Values of `model.kernel`."""

INSTALL = "install the extra `gpu` of this project on a machine with a GPU, or write model.kernel=chunked"
"""What to do where a fused scan lacks something."""

MODULES = {
    "triton": "triton",
    "mamba-ssm": "mamba_ssm",
    "causal-conv1d": "causal_conv1d",
    "fla-core": "fla",
}
"""Packages that fused scans come from -> what they are imported as. flash-linear-attention brings fla-core."""


def resolved_kernel(kernel: str, device: str, packages: Sequence[str]) -> str:
    """The form that runs: `auto` is `fused` where `trial.device` is `cuda` and there is a fused form, else `chunked`.

    `packages` is what the architecture's fused scan comes from; empty: it has none.
    """
    if kernel != "auto":
        return kernel
    return FUSED if device == "cuda" and packages else "chunked"


def check_kernel_device(kernel: str, device: str) -> None:
    """Raise a ModelError if that form cannot run on `trial.device`, whatever the machine has."""
    if kernel == FUSED and device == "cpu":
        raise ModelError(
            "model.kernel = 'fused' runs on GPUs, and trial.device is 'cpu': write trial.device=cuda, or "
            "model.kernel=chunked."
        )


def missing_packages(packages: Sequence[str]) -> list[str]:
    """Those of `packages` (names of `MODULES`) that cannot be imported here; nothing is imported to find out."""
    return [name for name in packages if find_spec(MODULES[name]) is None]


def fused_lacks(packages: Sequence[str], gpus: int | None = None) -> str:
    """What a fused scan lacks on this machine, as part of a sentence; empty if nothing.

    Args:
        packages: what it comes from.
        gpus: GPUs of this machine; None where nobody has counted.
    """
    lacking = []
    if missing := missing_packages(packages):
        lacking.append(f"{_joined(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed here")
    if gpus == 0:
        lacking.append("a CUDA GPU, which this machine does not have")
    return ", and ".join(lacking)


def kernel_versions(packages: Sequence[str]) -> dict[str, str]:
    """Versions of the packages that a fused scan ran with, by name."""
    return {name: _version(name) for name in packages}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


def _joined(names: Sequence[str]) -> str:
    return " and ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} and {names[-1]}"
