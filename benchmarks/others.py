"""Reference scans that others wrote, for comparison in tests and benchmarks: the naive functions of fla-core.

`import fla` needs triton, which a CPU has no use for, so each function's file is loaded by its path.
"""

import importlib.metadata
import importlib.util
from collections.abc import Callable
from typing import Any

from torch import Tensor


def from_fla(file: str, function: str) -> Callable[..., Any]:
    """Return a function of fla-core, for example `from_fla("ops/gla/naive.py", "naive_recurrent_gla")`.

    Raises:
        FileNotFoundError: the installed fla-core has no such file.
        importlib.metadata.PackageNotFoundError: fla-core is not installed.
    """
    for entry in importlib.metadata.files("fla-core") or ():
        if entry.as_posix() == f"fla/{file}":
            spec = importlib.util.spec_from_file_location(f"fla_{file[:-3].replace('/', '_')}", entry.locate())
            if spec is not None and spec.loader is not None:
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
                return getattr(module, function)
    raise FileNotFoundError(f"fla-core {importlib.metadata.version('fla-core')} has no file fla/{file}")


def fla_gla(q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, g_BTHK: Tensor, h0_BHKV: Tensor) -> tuple[Tensor, Tensor]:
    """GLA by fla: outputs (B, T, H, V) with the scale K**-0.5, and the final state (B, H, K, V), in fp32."""
    naive = from_fla("ops/gla/naive.py", "naive_recurrent_gla")
    o_BTHV, hT_BHKV = naive(q_BTHK, k_BTHK, v_BTHV, g_BTHK, initial_state=h0_BHKV, output_final_state=True)
    return o_BTHV, hT_BHKV


def fla_rwkv6(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, g_BTHK: Tensor, h0_BHKV: Tensor, bonus_HK: Tensor
) -> tuple[Tensor, Tensor]:
    """RWKV-6 by fla: outputs (B, T, H, V) with scale 1, and the final state (B, H, K, V), in fp32."""
    naive = from_fla("ops/rwkv6/recurrent_naive.py", "naive_recurrent_rwkv6")
    heads_first = [value.transpose(1, 2) for value in (q_BTHK, k_BTHK, v_BTHV, g_BTHK)]
    o_BHTV, hT_BHKV = naive(*heads_first, bonus_HK, scale=1.0, initial_state=h0_BHKV, output_final_state=True)
    return o_BHTV.transpose(1, 2), hT_BHKV
