"""Triton kernels written for a GPU, run on CPU tensors by Triton's interpreter: real kernels, line by line, slowly.

The interpreter needs help at a few places. Most are about the GPU that is not there; two are about arithmetic, and only
of bf16, which it stores as 16 bits of an integer and would multiply as such.
"""

import builtins
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

PRETENDED_DEVICE = SimpleNamespace(
    name="interpreter",
    major=8,
    minor=0,
    multi_processor_count=4,
    shared_memory_per_block=102400,
    shared_memory_per_block_optin=102400,
)
"""What libraries ask of a device in order to choose block sizes; any plausible card does."""


def switch_on() -> None:
    """Switch the interpreter on for this process; `adapt_ranges` follows once the kernels have been imported.

    Raises:
        RuntimeError: where a GPU is visible, or Triton was imported before.
    """
    if torch.cuda.is_available():
        raise RuntimeError("a GPU is visible: set CUDA_VISIBLE_DEVICES to nothing, this suite is for the interpreter")
    if "triton" in sys.modules:
        raise RuntimeError("triton has been imported before the interpreter was switched on")
    os.environ["TRITON_INTERPRET"] = "1"
    cuda: Any = torch.cuda
    # Launches are wrapped in `torch.cuda.device(index)`, which a CPU build of torch refuses.
    cuda.device = contextlib.nullcontext
    cuda.get_device_properties = lambda *device: PRETENDED_DEVICE
    _take_the_smallest_blocks()
    _compute_bf16_in_fp32()
    _open_mamba_ssm()


def adapt_ranges(*packages: str) -> None:
    """Give imported modules of the packages a `range` whose numbers know `.to(dtype)`, as a compiled kernel's do."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in packages and module is not None:
            module.__dict__["range"] = _kernel_range


def _take_the_smallest_blocks() -> None:
    """Autotuning would time each configuration on a driver that is not there."""
    from triton.runtime.autotuner import Autotuner

    prune = Autotuner.prune_configs

    def size(configuration: Any) -> int:
        return int(np.prod([value for value in configuration.kwargs.values() if isinstance(value, int)] or [1]))

    Autotuner.prune_configs = lambda self, kwargs: [min(prune(self, kwargs), key=size)]


def _open_mamba_ssm() -> None:
    """Make mamba_ssm a package whose modules can be imported one by one: as a whole it wants its CUDA extension."""
    found = find_spec("mamba_ssm")
    if found is None or found.origin is None:
        return
    package = ModuleType("mamba_ssm")
    package.__path__ = [str(Path(found.origin).parent)]
    package.__spec__ = found
    sys.modules["mamba_ssm"] = package


class _KernelInt(int):
    def to(self, dtype: Any, *options: Any, **more: Any) -> Any:
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle, _get_np_dtype

        return tl.tensor(TensorHandle(np.array([int(self)], dtype=_get_np_dtype(dtype)), dtype), dtype)


def _kernel_range(*bounds: int) -> Iterator[_KernelInt]:
    return map(_KernelInt, builtins.range(*bounds))


def _compute_bf16_in_fp32() -> None:
    """Products and elementwise operations of bf16: to fp32, computed, and rounded to bf16 where the result is one."""
    from triton.runtime.interpreter import InterpreterBuilder

    dot = InterpreterBuilder.create_dot
    InterpreterBuilder.create_dot = lambda self, a, b, *rest: dot(self, _widened(a), _widened(b), *rest)
    for name in ("binary_op", "unary_op"):
        setattr(InterpreterBuilder, name, _in_fp32(getattr(InterpreterBuilder, name)))


def _in_fp32(operation: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: Any, *arguments: Any) -> Any:
        if not any(map(_is_bf16, arguments)):
            return operation(self, *arguments)
        result = operation(self, *map(_widened, arguments))
        return _rounded(result) if result.data.dtype == np.float32 else result

    return run


def _is_bf16(handle: Any) -> bool:
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    return isinstance(handle, TensorHandle) and handle.dtype.scalar == tl.bfloat16


def _widened(handle: Any) -> Any:
    """The same values in fp32, of which bf16 is the upper half; anything but bf16 as it is."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    if not _is_bf16(handle):
        return handle
    return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


def _rounded(handle: Any) -> Any:
    """fp32 values as bf16, to the nearest, ties to even."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    bits = np.ascontiguousarray(handle.data, np.float32).view(np.uint32)
    return TensorHandle(((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16), tl.bfloat16)
