"""The scan of Mamba-1 (selective scan, arXiv:2312.00752): a decay of its own per position, channel and state column.

    h_t = exp(dt_t A) h_{t-1} + dt_t u_t B_t^T,    y_t = h_t C_t,    h_{-1} = h0

h_{t-1} counts as zero where `reset` is set at t. Shapes: B batch, T position, D channel, N state column. The decay is
inclusive: h0 reaches y_0 through exp(dt_0 A). The skip D u, the gate and the softplus of dt belong to the model.
"""

from typing import Protocol

import torch
from torch import Tensor

from models.scans.selective_chunked import selective_chunked
from models.scans.selective_fused import selective_fused

__all__ = ["SELECTIVE_SCANS", "SelectiveScan", "selective_chunked", "selective_fused", "selective_naive"]


class SelectiveScan(Protocol):
    """Signature that every form of the scan has."""

    def __call__(
        self,
        u_BTD: Tensor,
        dt_BTD: Tensor,
        A_DN: Tensor,
        B_BTN: Tensor,
        C_BTN: Tensor,
        h0_BDN: Tensor | None = None,
        reset_BT: Tensor | None = None,
        *,
        chunk: int = 16,
    ) -> tuple[Tensor, Tensor]:
        """Run the recurrence.

        Args:
            u_BTD: inputs, T >= 1, any floating-point dtype.
            dt_BTD: step sizes, positive, after bias and softplus; fp32 or float64.
            A_DN: negative decay rates, dtype of dt.
            B_BTN: input vectors, any floating-point dtype.
            C_BTN: output vectors, any floating-point dtype.
            h0_BDN: state before position 0, dtype of dt; zero if None.
            reset_BT: bool; True where the state is zeroed before the position; never if None.
            chunk: positions per block of a blocked form, which may take several at once; the loop ignores it.

        Returns:
            y (B, T, D) in the dtype of u, and the state after position T - 1, (B, D, N) in the dtype of dt.
            Both are affine in h0, and differentiable in every floating-point argument.
        """
        ...


def selective_naive(
    u_BTD: Tensor,
    dt_BTD: Tensor,
    A_DN: Tensor,
    B_BTN: Tensor,
    C_BTN: Tensor,
    h0_BDN: Tensor | None = None,
    reset_BT: Tensor | None = None,
    *,
    chunk: int = 16,
) -> tuple[Tensor, Tensor]:
    """Run the recurrence position by position: slow, and the meaning of every other form. See SelectiveScan."""
    dtype = dt_BTD.dtype
    keep_BT = torch.ones_like(dt_BTD[..., 0]) if reset_BT is None else (~reset_BT).to(dtype)
    v_BTD = u_BTD.to(dtype) * dt_BTD
    h_BDN = dt_BTD.new_zeros(u_BTD.shape[0], *A_DN.shape) if h0_BDN is None else h0_BDN
    outputs = []
    # unbind, because the gradient of an index in a loop over T writes a full-size zero tensor each time.
    series = (dt_BTD, v_BTD, B_BTN.to(dtype), C_BTN.to(dtype), keep_BT)
    for dt_BD, v_BD, b_BN, c_BN, keep_B in zip(*(value.unbind(1) for value in series), strict=True):
        decay_BDN = torch.exp(dt_BD[..., None] * A_DN) * keep_B[:, None, None]
        h_BDN = decay_BDN * h_BDN + v_BD[..., None] * b_BN[:, None]
        outputs.append((h_BDN @ c_BN[..., None]).squeeze(-1))
    return torch.stack(outputs, dim=1).to(u_BTD.dtype), h_BDN


SELECTIVE_SCANS: dict[str, SelectiveScan] = {
    "chunked": selective_chunked,
    "fused": selective_fused,
    "naive": selective_naive,
}
