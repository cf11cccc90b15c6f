"""The scan of Mamba-2 (state space duality, arXiv:2405.21060): one scalar decay per head and position.

    h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t^T,    y_t = h_t C_t,    h_{-1} = h0

h_{t-1} counts as zero where `reset` is set at t. Shapes: B batch, T position, H head, P head channel, G group of heads
that shares B and C, N state column. The decay is inclusive: h0 reaches y_0 through exp(dt_0 A).
"""

from typing import Protocol

import torch
from torch import Tensor

from models.scans.ssd_chunked import ssd_chunked
from models.scans.ssd_fused import ssd_fused

__all__ = ["SSD_SCANS", "SsdScan", "ssd_chunked", "ssd_fused", "ssd_naive"]


class SsdScan(Protocol):
    """Signature that every form of the scan has."""

    def __call__(
        self,
        x_BTHP: Tensor,
        dt_BTH: Tensor,
        A_H: Tensor,
        B_BTGN: Tensor,
        C_BTGN: Tensor,
        h0_BHPN: Tensor | None = None,
        reset_BT: Tensor | None = None,
        *,
        chunk: int = 64,
    ) -> tuple[Tensor, Tensor]:
        """Run the recurrence.

        Args:
            x_BTHP: inputs, T >= 1.
            dt_BTH: step sizes, positive, after bias and softplus; fp32 or float64.
            A_H: negative decay rates, dtype of dt.
            B_BTGN: input vectors, dtype of x.
            C_BTGN: output vectors, dtype of x.
            h0_BHPN: state before position 0, dtype of dt; zero if None.
            reset_BT: bool; True where the state is zeroed before the position; never if None.
            chunk: positions per block of a blocked form; the loop ignores it.

        Returns:
            y (B, T, H, P) in the dtype of x, and the state after position T - 1, (B, H, P, N) in the dtype of dt.
            Both are affine in h0, and differentiable in every floating-point argument.
        """
        ...


def ssd_naive(
    x_BTHP: Tensor,
    dt_BTH: Tensor,
    A_H: Tensor,
    B_BTGN: Tensor,
    C_BTGN: Tensor,
    h0_BHPN: Tensor | None = None,
    reset_BT: Tensor | None = None,
    *,
    chunk: int = 64,
) -> tuple[Tensor, Tensor]:
    """Run the recurrence position by position: slow, and the meaning of every other form. See SsdScan."""
    B, _, H, P = x_BTHP.shape
    heads_per_group = H // B_BTGN.shape[2]
    B_BTHN, C_BTHN = (v.to(dt_BTH.dtype).repeat_interleave(heads_per_group, dim=2) for v in (B_BTGN, C_BTGN))
    decay_BTH = torch.exp(dt_BTH * A_H)
    if reset_BT is not None:
        decay_BTH = decay_BTH * ~reset_BT[..., None]
    xdt_BTHP = x_BTHP.to(dt_BTH.dtype) * dt_BTH[..., None]
    h_BHPN = x_BTHP.new_zeros(B, H, P, B_BTGN.shape[3], dtype=dt_BTH.dtype) if h0_BHPN is None else h0_BHPN
    outputs = []
    # unbind, because the gradient of an index in a loop over T writes a full-size zero tensor each time.
    for a_BH, u_BHP, b_BHN, c_BHN in zip(*(v.unbind(1) for v in (decay_BTH, xdt_BTHP, B_BTHN, C_BTHN)), strict=True):
        h_BHPN = a_BH[..., None, None] * h_BHPN + u_BHP[..., None] * b_BHN[:, :, None]
        outputs.append((h_BHPN @ c_BHN[..., None]).squeeze(-1))
    return torch.stack(outputs, dim=1).to(x_BTHP.dtype), h_BHPN


SSD_SCANS: dict[str, SsdScan] = {"chunked": ssd_chunked, "fused": ssd_fused, "naive": ssd_naive}
