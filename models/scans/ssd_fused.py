"""The scan of Mamba-2 by the Triton kernels of mamba-ssm (`mamba_chunk_scan_combined`); see models.scans.ssd.

Not their `mamba_split_conv1d_scan_combined`: it starts every convolution from zero and returns no state of it. The
recurrence over blocks runs in fp32 and so do the states that come in and go out; with bf16 inputs the state that a
block reads from is rounded to bf16, being a factor of a matrix product. Products of fp32 inputs are TF32 on GPUs that
have it, unless TRITON_F32_DEFAULT says otherwise.
"""

import torch
from torch import Tensor

from models.scans.fused import check_call, check_size, library

CHUNK = 256
"""Positions per block: the default of mamba-ssm's own models."""


def ssd_fused(
    x_BTHP: Tensor,
    dt_BTH: Tensor,
    A_H: Tensor,
    B_BTGN: Tensor,
    C_BTGN: Tensor,
    h0_BHPN: Tensor | None = None,
    reset_BT: Tensor | None = None,
    *,
    chunk: int = CHUNK,
    D_H: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the recurrence; see SsdScan. `chunk` is a power of two of at least 16; with `D_H`, y has D x added to it.

    Raises:
        ModelError: without mamba-ssm, off a GPU, for another dtype than fp32 and bf16, or for too many tokens.
    """
    check_call("mamba2", x_BTHP, triton=True)
    _check_size(x_BTHP, B_BTGN, chunk)
    scan = library("mamba_ssm.ops.triton.ssd_combined", "mamba_chunk_scan_combined")
    # Numbered from 0, the segment that the state before position 0 belongs to: the kernels look for that number.
    segment_BT = None if reset_BT is None else reset_BT.cumsum(1, dtype=torch.int32)
    with torch.autocast(x_BTHP.device.type, enabled=False):
        y_BTHP, h_BHPN = scan(
            x_BTHP,
            dt_BTH.float(),
            A_H.float(),
            B_BTGN.to(x_BTHP.dtype),
            C_BTGN.to(x_BTHP.dtype),
            chunk,
            D=None if D_H is None else D_H.float(),
            initial_states=None if h0_BHPN is None else h0_BHPN.float(),
            seq_idx=segment_BT,
            return_final_states=True,
        )
    return y_BTHP, h_BHPN


def _check_size(x_BTHP: Tensor, B_BTGN: Tensor, chunk: int) -> None:
    (B, T, H, P), (G, N) = x_BTHP.shape, B_BTGN.shape[2:]
    blocks = -(-T // chunk)
    elements = {
        "inputs": B * T * H * P,
        "chunk states": B * blocks * H * P * N,
        "products of B and C": B * blocks * G * chunk * chunk,
        # Gradients that are summed over heads in parts have no more: in large calls a group's heads are one part.
        "vectors B and C": B * T * G * N,
    }
    check_size("mamba2", B, T, elements)
