"""The scan of linear attention with a decay per key channel: GLA (arXiv:2312.06635) and RWKV-6 (arXiv:2404.05892).

    S_t = diag(exp g_t) S_{t-1} + k_t v_t^T,    S_{-1} = h0
    GLA:     o_t = scale S_t^T q_t
    RWKV-6:  o_t = scale (S_{t-1} + diag(u) k_t v_t^T)^T q_t,    u the bonus

S_{t-1} counts as zero where `reset` is set at t. Shapes: B batch, T position, H head, K key channel, V value channel.
The decay that h0 meets is inclusive in GLA (h0 reaches o_0 through exp g_0), exclusive in RWKV-6 (o_0 reads h0 itself).
"""

from typing import Protocol

import torch
from torch import Tensor

from models.scans.gated_chunked import gated_chunked
from models.scans.gated_fused import gated_fused

__all__ = ["GATED_SCANS", "GatedScan", "gated_chunked", "gated_fused", "gated_naive"]


class GatedScan(Protocol):
    """Signature that every form of the scan has."""

    def __call__(
        self,
        q_BTHK: Tensor,
        k_BTHK: Tensor,
        v_BTHV: Tensor,
        g_BTHK: Tensor,
        h0_BHKV: Tensor | None = None,
        reset_BT: Tensor | None = None,
        *,
        bonus_HK: Tensor | None = None,
        scale: float = 1.0,
        chunk: int = 64,
    ) -> tuple[Tensor, Tensor]:
        """Run the recurrence.

        Args:
            q_BTHK: queries ("receptance" in RWKV), T >= 1; any floating dtype, as k and v.
            k_BTHK: keys.
            v_BTHV: values.
            g_BTHK: log-decays, at most 0; fp32 or float64. The state and all arithmetic with decays have this dtype.
            h0_BHKV: state before position 0, dtype of g; zero if None.
            reset_BT: bool; True where the state is zeroed before the position; never if None.
            bonus_HK: weight of the position's own key and value, which makes the scan that of RWKV-6; GLA if None.
            scale: factor of the outputs.
            chunk: positions per block of a blocked form; the loop ignores it.

        Returns:
            o (B, T, H, V) in the dtype of v, and the state after position T - 1, (B, H, K, V) in the dtype of g.
            Both are affine in h0, and differentiable in every floating-point argument.
        """
        ...


def gated_naive(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    g_BTHK: Tensor,
    h0_BHKV: Tensor | None = None,
    reset_BT: Tensor | None = None,
    *,
    bonus_HK: Tensor | None = None,
    scale: float = 1.0,
    chunk: int = 64,
) -> tuple[Tensor, Tensor]:
    """Run the recurrence position by position: slow, and the meaning of every other form. See GatedScan."""
    B, _, H, K = q_BTHK.shape
    full = g_BTHK.dtype
    decay_BTHK = torch.exp(g_BTHK)
    kept_BT = torch.ones_like(g_BTHK[:, :, 0, 0]) if reset_BT is None else (~reset_BT).to(full)
    h_BHKV = g_BTHK.new_zeros(B, H, K, v_BTHV.shape[3]) if h0_BHKV is None else h0_BHKV.to(full)
    outputs = []
    # unbind, because the gradient of an index in a loop over T writes a full-size zero tensor each time.
    steps = (v.unbind(1) for v in (q_BTHK.to(full), k_BTHK.to(full), v_BTHV.to(full), decay_BTHK, kept_BT))
    for q_BHK, k_BHK, v_BHV, a_BHK, kept_B in zip(*steps, strict=True):
        h_BHKV = h_BHKV * kept_B[:, None, None, None]
        kv_BHKV = k_BHK[..., None] * v_BHV[..., None, :]
        before_BHKV = h_BHKV
        h_BHKV = a_BHK[..., None] * h_BHKV + kv_BHKV
        read_BHKV = h_BHKV if bonus_HK is None else before_BHKV + bonus_HK.to(full)[..., None] * kv_BHKV
        outputs.append(scale * (q_BHK[..., None, :] @ read_BHKV).squeeze(-2))
    return torch.stack(outputs, dim=1).to(v_BTHV.dtype), h_BHKV


GATED_SCANS: dict[str, GatedScan] = {"chunked": gated_chunked, "fused": gated_fused, "naive": gated_naive}
