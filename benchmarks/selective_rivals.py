"""Selective scans that others wrote, and inputs to compare them on; `benchmarks.scan_speed` runs them.

mambapy (PyPI) scans in parallel over a whole (B, T, D, N) tensor. The torch path of transformers and mamba_ssm's
`selective_scan_ref` are loops that know no initial state. mamba_ssm cannot be imported without CUDA: its one file is
read from a folder with its unpacked source, and the CUDA parts that it asks for are left empty.
"""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import torch
from torch import Tensor

Scan = Callable[..., tuple[Tensor, Tensor]]
SELECTIVE_FILE = "mamba_ssm/ops/selective_scan_interface.py"


def selective_inputs(fastest_dt: float, with_state: bool) -> Callable[[int, int], list[Tensor]]:
    """u, dt, A, B, C and h0 for 256 channels of 16 columns, A = -(1..16), dt log-uniform from 1e-3 to `fastest_dt`."""

    def inputs(rows: int, length: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(length)
        u = torch.randn(rows, length, 256, generator=generator)
        dt = 1e-3 * (fastest_dt / 1e-3) ** torch.rand(rows, length, 256, generator=generator)
        A = -torch.arange(1.0, 17.0).repeat(256, 1)
        B, C = torch.randn(2, rows, length, 16, generator=generator)
        h0 = torch.randn(rows, 256, 16, generator=generator)
        leaves = [u, dt, A, B, C, h0] if with_state else [u, dt, A, B, C]
        return [value.requires_grad_() for value in leaves]

    return inputs


def mambapy_pscan(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor) -> tuple[Tensor, Tensor]:
    """mambapy's parallel scan; the initial state enters through the first position."""
    from mambapy.pscan import pscan  # type: ignore[import-not-found, import-untyped, unused-ignore]

    decay_BTDN = torch.exp(dt[..., None] * A)
    added_BTDN = (dt * u)[..., None] * B[:, :, None]
    first = added_BTDN[:, :1] + decay_BTDN[:, :1] * h0[:, None]
    h_BTDN = pscan(decay_BTDN, torch.cat([first, added_BTDN[:, 1:]], 1))
    return (h_BTDN @ C[..., None]).squeeze(-1), h_BTDN[:, -1]


def transformers_scan(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    """The torch path of transformers, from the zero state."""
    from transformers.models.mamba.modeling_mamba import mamba_selective_scan

    scan = getattr(mamba_selective_scan, "__wrapped__", mamba_selective_scan)
    y, final = scan(
        *(v.transpose(1, 2) for v in (u, dt)), A, *(v.transpose(1, 2) for v in (B, C)), return_last_state=True
    )
    return y.transpose(1, 2), final


def mamba_ssm_reference(folder: Path) -> Scan:
    """`selective_scan_ref` of the mamba_ssm source in `folder`, from the zero state.

    Raises:
        FileNotFoundError: the folder has no such file.
    """
    file = folder / SELECTIVE_FILE
    if not file.is_file():
        raise FileNotFoundError(
            f"{folder} has no file {SELECTIVE_FILE}; name a folder with mamba_ssm's unpacked source"
        )
    reference = _load(file).selective_scan_ref

    def scan(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
        moved = (v.transpose(1, 2) for v in (B, C))
        y, final = reference(u.transpose(1, 2), dt.transpose(1, 2), A, *moved, return_last_state=True)
        return y.transpose(1, 2), final

    return scan


def _load(file: Path) -> ModuleType:
    """Run the file, with empty modules where it imports compiled kernels, which the reference does not use."""
    names = ("mamba_ssm", "mamba_ssm.utils", "mamba_ssm.utils.torch", "mamba_ssm.ops", "mamba_ssm.ops.triton")
    empty = {name: ModuleType(name) for name in (*names, "mamba_ssm.ops.triton.layer_norm", "selective_scan_cuda")}
    for decorator in ("custom_bwd", "custom_fwd"):
        setattr(empty["mamba_ssm.utils.torch"], decorator, lambda function: function)
    empty["mamba_ssm.ops.triton.layer_norm"]._layer_norm_fwd = None  # type: ignore[attr-defined]
    spec = importlib.util.spec_from_file_location("selective_scan_interface", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Only while the file runs: transformers would take an importable mamba_ssm for the real one.
    with patch.dict(sys.modules, empty):
        spec.loader.exec_module(module)
    return module
