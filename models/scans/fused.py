"""What the scans from GPU libraries share: where they may run, how large a call may be, and packed segments.

Legend: B batch, T position.
"""

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from models.errors import ModelError
from models.kernels import INSTALL

OFFSETS = 2**31
"""Elements of one tensor at which 32-bit offsets, which the kernels use here and there, wrap."""
DTYPES = (torch.float32, torch.bfloat16)
WRONG_ON_HOPPER = ((3, 4, 0), (3, 7, 1))
"""From this Triton on and below that one, compiled gradients are wrong on compute capability 9 (H100, H200):
fla-org/flash-linear-attention#640."""

Run = Callable[[Sequence[Tensor], Tensor | None], tuple[Tensor, Tensor]]
"""(series (B, T, ...), state before position 0) -> (outputs (B, T, ...), state after position T - 1)."""


def library(module: str, name: str) -> Any:
    """The function `name` of an installed library. Raises a ModelError that says what is missing."""
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ModelError(
            f"the fused scan needs {name} of {module}, which cannot be imported ({reason}): {INSTALL}."
        ) from error


def check_call(scan: str, series: Tensor, *, triton: bool) -> None:
    """Raise a ModelError where the library cannot take these inputs, or gives wrong gradients on this GPU.

    Args:
        scan: what the call is named in the error.
        series: inputs of the scan.
        triton: whether the library is written in Triton, which may also run in its interpreter, on a CPU.
    """
    if series.dtype not in DTYPES:
        raise ModelError(f"the fused scan of {scan} takes float32 or bfloat16, and was given {series.dtype}.")
    if series.is_cuda:
        if triton:
            version = str(library("triton", "__version__"))
            check_triton(version, torch.cuda.get_device_capability(series.device))
    elif not (triton and library("triton", "knobs").runtime.interpret):
        raise ModelError(
            f"the fused scan of {scan} runs on a CUDA GPU, and was given tensors on the {series.device.type}: write "
            "model.kernel=chunked there."
        )


def check_triton(version: str, capability: tuple[int, int]) -> None:
    """Raise a ModelError if kernels that this Triton compiles have wrong gradients on GPUs of that capability."""
    numbers = [int(found) for found in re.findall(r"\d+", version)[:3]]
    release = tuple(numbers + [0] * (3 - len(numbers)))
    first, fixed = WRONG_ON_HOPPER
    if capability[0] == 9 and first <= release < fixed:
        raise ModelError(
            f"Triton {version} compiles wrong gradients for Hopper GPUs: install triton 3.7.1 or newer, or write "
            "model.kernel=chunked."
        )


def check_size(scan: str, rows: int, positions: int, elements: Mapping[str, int]) -> None:
    """Raise a ModelError if a tensor that the kernels index has so many elements that their offsets would wrap.

    Args:
        scan: what the call is named in the error.
        rows: B.
        positions: T.
        elements: what is indexed -> its elements in this call, which grow with B T.
    """
    largest = max(elements, key=lambda name: elements[name])
    if elements[largest] < OFFSETS:
        return
    tokens = rows * positions * (OFFSETS - 1) // elements[largest]
    raise ModelError(
        f"a call of {rows} x {positions} tokens makes the fused scan of {scan} index {elements[largest]:,} {largest}, "
        f"and its 32-bit offsets wrap at {OFFSETS:,}: give a call at most {tokens:,} tokens, by trial.micro_rows or "
        "eval.chunk."
    )


def in_segments(run: Run, series: Sequence[Tensor], h0: Tensor | None, reset_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Run a scan that knows no resets piece by piece: it is cut wherever a row's state is reset.

    Args:
        run: the scan.
        series: its inputs (B, T, ...).
        h0: state before position 0; zero if None.
        reset_BT: bool; True where the state is zeroed before the position.

    Returns:
        Outputs (B, T, ...) and the state after position T - 1. As many calls as positions where some row is reset, and
        one more: for few long documents, not for many short ones.
    """
    T = reset_BT.shape[1]
    cuts = [0, *(position for position in reset_BT.any(0).nonzero()[:, 0].tolist() if position > 0), T]
    outputs, state = [], h0
    for start, stop in zip(cuts, cuts[1:], strict=False):
        if state is not None:
            kept_B = ~reset_BT[:, start]
            state = state * kept_B.view(-1, *[1] * (state.dim() - 1))
        y, state = run([value[:, start:stop] for value in series], state)
        outputs.append(y)
    assert state is not None
    return torch.cat(outputs, 1), state
