"""The scan of GLA and RWKV-6 by the Triton kernels of flash-linear-attention (`chunk_gla`, `chunk_rwkv6`).

See models.scans.gated. Not `fused_recurrent_rwkv6`: its backward pass ignores the gradient of the final state. States
are (B, H, K, V), fp32 in and out; with bf16 inputs GLA's blocks read a state that is rounded to bf16, being a factor
of a matrix product. The kernels choose their block length themselves, and resets cut the call (`in_segments`).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from models.scans.fused import check_call, check_size, in_segments, library

BLOCK = 64
"""Positions per block of the kernels, at most."""
LEAF = 16
"""Positions per block inside a block; with more than 256 key channels each group of them has scores of its own."""
KEYS_AT_ONCE = 256


def gated_fused(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    g_BTHK: Tensor,
    h0_BHKV: Tensor | None = None,
    reset_BT: Tensor | None = None,
    *,
    bonus_HK: Tensor | None = None,
    scale: float = 1.0,
    chunk: int = BLOCK,
) -> tuple[Tensor, Tensor]:
    """Run the recurrence; see GatedScan.

    Raises:
        ModelError: without flash-linear-attention, off a GPU, for another dtype than fp32 and bf16, or for too many
            tokens.
    """
    scan = "gla" if bonus_HK is None else "rwkv6"
    check_call(scan, v_BTHV, triton=True)
    _check_size(scan, k_BTHK, v_BTHV)
    dtype = v_BTHV.dtype
    series = [q_BTHK.to(dtype), k_BTHK.to(dtype), v_BTHV, g_BTHK.float()]
    h0_BHKV = None if h0_BHKV is None else h0_BHKV.float()

    def run(series: Sequence[Tensor], state_BHKV: Tensor | None) -> tuple[Tensor, Tensor]:
        return _call(series, bonus_HK, scale, state_BHKV)

    return run(series, h0_BHKV) if reset_BT is None else in_segments(run, series, h0_BHKV, reset_BT)


def _call(
    series: Sequence[Tensor], bonus_HK: Tensor | None, scale: float, state_BHKV: Tensor | None
) -> tuple[Tensor, Tensor]:
    q_BTHK, k_BTHK, v_BTHV, g_BTHK = series
    options = {"scale": scale, "initial_state": state_BHKV, "output_final_state": True}
    with torch.autocast(v_BTHV.device.type, enabled=False):
        if bonus_HK is None:
            o_BTHV, h_BHKV = library("fla.ops.gla", "chunk_gla")(q_BTHK, k_BTHK, v_BTHV, g_BTHK, **options)
        else:
            rwkv6 = library("fla.ops.rwkv6", "chunk_rwkv6")
            o_BTHV, h_BHKV = rwkv6(q_BTHK, k_BTHK, v_BTHV, g_BTHK, bonus_HK.float(), **options)
    return o_BTHV, h_BHKV


def _check_size(scan: str, k_BTHK: Tensor, v_BTHV: Tensor) -> None:
    (B, T, H, K), V = k_BTHK.shape, v_BTHV.shape[3]
    elements = {
        "values": B * T * H * V,
        "keys": B * T * H * K,
        "chunk states": B * -(-T // BLOCK) * H * K * V,
        "scores": B * T * H * max(BLOCK, LEAF * -(-K // KEYS_AT_ONCE)),
    }
    check_size(scan, B, T, elements)
