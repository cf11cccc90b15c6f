"""Triton kernels written for a GPU, run on CPU tensors by Triton's interpreter: `prepare()` before fla is imported.

The interpreter executes a kernel's Python line by line on numpy arrays: slow, but it is the real kernel. It needs help
at four places, all about the missing GPU and none about arithmetic. Used only to make reference files.
"""

import builtins
import contextlib
import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

# What fla asks of a device in order to choose block sizes; any plausible card does.
PRETENDED_DEVICE = SimpleNamespace(
    name="interpreter",
    major=8,
    minor=0,
    multi_processor_count=4,
    shared_memory_per_block=102400,
    shared_memory_per_block_optin=102400,
)


def prepare() -> None:
    """Switch the interpreter on for this process; raises RuntimeError where Triton was already imported without it."""
    if torch.cuda.is_available():
        raise RuntimeError("a GPU is visible: set CUDA_VISIBLE_DEVICES to nothing, the references are made on a CPU.")
    if "triton" in sys.modules:
        raise RuntimeError("triton is already imported: call prepare() before anything that imports fla.")
    os.environ["TRITON_INTERPRET"] = "1"
    # Kernel launches are wrapped in `torch.cuda.device(index)`, which a CPU build of torch refuses.
    cuda: Any = torch.cuda
    cuda.device = contextlib.nullcontext
    cuda.get_device_properties = lambda *device: PRETENDED_DEVICE
    _take_the_smallest_configuration()


def adapt_ranges(prefix: str = "fla.") -> None:
    """Give every imported module under prefix a `range` whose numbers know `.to(dtype)`, as a kernel's do.

    Compiled, `for i in range(n)` makes tensors; interpreted, it makes plain ints and `i.to(tl.int64)` fails.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith(prefix) and module is not None:
            module.__dict__["range"] = _kernel_range


def _take_the_smallest_configuration() -> None:
    """Autotuning would time each configuration on a driver that is not there: take the one with the smallest blocks."""
    from triton.runtime.autotuner import Autotuner

    prune = Autotuner.prune_configs

    def blocks(configuration: Any) -> int:
        return int(np.prod([value for value in configuration.kwargs.values() if isinstance(value, int)] or [1]))

    Autotuner.prune_configs = lambda self, kwargs: [min(prune(self, kwargs), key=blocks)]


class _KernelInt(int):
    def to(self, dtype: Any, *options: Any, **more: Any) -> Any:
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle, _get_np_dtype

        return tl.tensor(TensorHandle(np.array([int(self)], dtype=_get_np_dtype(dtype)), dtype), dtype)


def _kernel_range(*bounds: int) -> Iterator[_KernelInt]:
    return map(_KernelInt, builtins.range(*bounds))
