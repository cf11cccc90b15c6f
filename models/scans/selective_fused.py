"""The scan of Mamba-1 by the CUDA kernel of mamba-ssm (`selective_scan_fn`); see models.scans.selective.

The kernel starts from zero and gives its final state no gradient: `selective_prefix` writes the state before the
sequence and reads it after it. Everything runs in fp32, also with bf16 inputs: the kernel would want dt in the dtype of
u, and a bf16 dt has lost what the model keeps it in fp32 for. Resets cut the call (`in_segments`).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from models.scans.fused import check_call, check_size, in_segments, library
from models.scans.selective_prefix import with_initial_state

PIECE = 2048
"""Positions that the kernel takes at once; it keeps a state after each."""


def selective_fused(
    u_BTD: Tensor,
    dt_BTD: Tensor,
    A_DN: Tensor,
    B_BTN: Tensor,
    C_BTN: Tensor,
    h0_BDN: Tensor | None = None,
    reset_BT: Tensor | None = None,
    *,
    chunk: int = PIECE,
) -> tuple[Tensor, Tensor]:
    """Run the recurrence; see SelectiveScan. The kernel chooses its block length itself.

    Raises:
        ModelError: without mamba-ssm, off a GPU, for another dtype than fp32 and bf16, or for too many tokens.
    """
    check_call("mamba1", u_BTD, triton=False)
    _check_size(u_BTD, A_DN.shape[1])
    A_DN = A_DN.float()
    series = [value.float() for value in (u_BTD, dt_BTD, B_BTN, C_BTN)]

    def run(series: Sequence[Tensor], state_BDN: Tensor | None) -> tuple[Tensor, Tensor]:
        return _from_state(*series, A_DN=A_DN, h0_BDN=state_BDN)

    h0_BDN = None if h0_BDN is None else h0_BDN.float()
    with torch.autocast(u_BTD.device.type, enabled=False):
        y_BTD, h_BDN = run(series, h0_BDN) if reset_BT is None else in_segments(run, series, h0_BDN, reset_BT)
    return y_BTD.to(u_BTD.dtype), h_BDN


def from_zero(u_BTD: Tensor, dt_BTD: Tensor, A_DN: Tensor, B_BTN: Tensor, C_BTN: Tensor) -> tuple[Tensor, Tensor]:
    """The kernel itself, from the zero state, in fp32: outputs (B, T, D), and a final state without gradient."""
    scan = library("mamba_ssm.ops.selective_scan_interface", "selective_scan_fn")
    u, dt, B, C = (value.transpose(1, 2).contiguous() for value in (u_BTD, dt_BTD, B_BTN, C_BTN))
    y_BDT, h_BDN = scan(u, dt, A_DN, B, C, return_last_state=True)
    return y_BDT.transpose(1, 2), h_BDN


def _from_state(
    u_BTD: Tensor, dt_BTD: Tensor, B_BTN: Tensor, C_BTN: Tensor, *, A_DN: Tensor, h0_BDN: Tensor | None
) -> tuple[Tensor, Tensor]:
    inputs = (u_BTD, dt_BTD, A_DN, B_BTN, C_BTN)
    needs_gradient = torch.is_grad_enabled() and any(
        value.requires_grad for value in (*inputs, h0_BDN) if value is not None
    )
    if h0_BDN is None and not needs_gradient:
        return from_zero(*inputs)
    start_BDN = u_BTD.new_zeros(u_BTD.shape[0], *A_DN.shape) if h0_BDN is None else h0_BDN
    return with_initial_state(from_zero, *inputs, start_BDN, read_final=needs_gradient)


def _check_size(u_BTD: Tensor, columns: int) -> None:
    B, T, D = u_BTD.shape
    positions = T + 2 * columns
    elements = {
        "inputs": B * positions * D,
        # A decay and a state after each piece, for every channel and column.
        "chunk states": B * D * -(-positions // PIECE) * 2 * columns,
    }
    check_size("mamba1", B, T, elements)
