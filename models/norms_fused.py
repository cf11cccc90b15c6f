"""What follows a scan, by the Triton kernels of mamba-ssm and flash-linear-attention; see models.norms.

Only where one kernel reads and writes the dtype of the activations in place of several passes over memory: gated norms
and the product of a gated MLP. Not the norms of the residual stream, since a library's writes in the dtype that it
reads, which is fp32 there; nor the loss, whose fused forms sum in fp32, while ours holds as few logits at once
(models.loss).

Legend: B batch, T position, I channels of a Mamba-2 mixer, H head, V value channel, F channel of an MLP.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from models.norms import rms_norm
from models.scans.fused import check_call, check_size, library

GatedNorm = Callable[[Tensor, Tensor, Tensor, float], Tensor]
GatedProduct = Callable[[Tensor, Tensor], Tensor]


def gated_readout_fused(v_BTI: Tensor, z_BTI: Tensor, weight_I: Tensor, eps: float, groups: int) -> Tensor:
    """Return RMSNorm(v * silu(z)), (B, T, I) in the dtype of v, which holds y + D x; see `norms.gated_readout`.

    Raises:
        ModelError: without mamba-ssm, off a GPU, or for too many tokens.
    """
    B, T, channels = v_BTI.shape
    check_call("the gated norm", v_BTI, triton=True)
    # The gate is a part of wider rows, and the kernel counts from row to row.
    check_size("the gated norm", B, T, {"projected inputs": B * T * max(channels, z_BTI.stride(1))})
    norm = library("mamba_ssm.ops.triton.layernorm_gated", "rmsnorm_fn")
    with torch.autocast(v_BTI.device.type, enabled=False):
        gated_BTI: Tensor = norm(
            v_BTI, weight_I, None, z_BTI, eps=eps, group_size=channels // groups, norm_before_gate=False
        )
    return gated_BTI


def gated_norm(o_BTHV: Tensor, gate_BTHV: Tensor, weight_V: Tensor, eps: float) -> Tensor:
    """Return RMSNorm(o) * silu(gate), head by head, in the dtype of the weight: the read-out of GLA."""
    return rms_norm(o_BTHV, weight_V, eps) * F.silu(gate_BTHV)


def gated_norm_fused(o_BTHV: Tensor, gate_BTHV: Tensor, weight_V: Tensor, eps: float) -> Tensor:
    """As `gated_norm`. Raises a ModelError without flash-linear-attention, off a GPU, or for too many tokens."""
    B, T = o_BTHV.shape[:2]
    check_call("the gated norm", o_BTHV, triton=True)
    check_size("the gated norm", B, T, {"values": o_BTHV.numel()})
    norm = library("fla.modules.fused_norm_gate", "rms_norm_gated")
    with torch.autocast(o_BTHV.device.type, enabled=False):
        gated_BTHV: Tensor = norm(o_BTHV, gate_BTHV, weight_V, None, eps=eps)
    return gated_BTHV


def swiglu(gate_BTF: Tensor, up_BTF: Tensor) -> Tensor:
    """Return silu(gate) * up."""
    return F.silu(gate_BTF) * up_BTF


def swiglu_fused(gate_BTF: Tensor, up_BTF: Tensor) -> Tensor:
    """As `swiglu`. Raises a ModelError without flash-linear-attention, or off a GPU."""
    check_call("the gated MLP", gate_BTF, triton=True)
    product: Callable[[Tensor, Tensor], Tensor] = library("fla.modules.activations", "swiglu")
    with torch.autocast(gate_BTF.device.type, enabled=False):
        return product(gate_BTF, up_BTF)


GATED_NORMS: dict[str, GatedNorm] = {"chunked": gated_norm, "fused": gated_norm_fused, "naive": gated_norm}
SWIGLUS: dict[str, GatedProduct] = {"chunked": swiglu, "fused": swiglu_fused, "naive": swiglu}
"""What goes with each form of the scan."""
