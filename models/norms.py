"""RMS norms and gated read-outs with hand-written gradients: a few passes over memory, fp32 or better inside.

Legend: D normalised channels, B batch, T position, H head, P head channel, I = H * P.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """Scale the last axis (D) to unit root mean square, then by `weight_D`; result in the dtype of the weight."""
    return _RmsNorm.apply(x, weight_D, eps)


class RMSNorm(nn.Module):
    """Holder of a norm's weight; `weight` has one entry per channel and starts at one."""

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis; the result has the weight's dtype."""
        return rms_norm(x, self.weight, self.eps)


def gated_readout(
    y_BTHP: Tensor, x_BTHP: Tensor, D_H: Tensor, z_BTI: Tensor, weight_I: Tensor, eps: float, groups: int
) -> Tensor:
    """Return RMSNorm((y + D x) * silu(z)), the read-out of a Mamba-2 mixer, (B, T, I) in the dtype of z.

    Args:
        y_BTHP: outputs of the scan.
        x_BTHP: inputs of the scan, which skip it through D.
        D_H: skip weights, in fp32 or better.
        z_BTI: gate.
        weight_I: norm weight.
        eps: added to the mean square.
        groups: blocks of I / groups channels that are normalised apart.
    """
    return _GatedReadout.apply(y_BTHP, x_BTHP, D_H, z_BTI, weight_I, eps, groups)


def gated_skip(y_BTI: Tensor, x_BTI: Tensor, D_I: Tensor, z_BTI: Tensor) -> Tensor:
    """Return (y + D x) * silu(z), the read-out of a Mamba-1 mixer, in the dtype of z.

    Args:
        y_BTI: outputs of the scan.
        x_BTI: inputs of the scan, which skip it through D.
        D_I: skip weights, in fp32 or better.
        z_BTI: gate.
    """
    return _GatedSkip.apply(y_BTI, x_BTI, D_I, z_BTI)


def _inverse_rms(g: Tensor, groups: int, eps: float) -> Tensor:
    """Return 1 / sqrt(mean square + eps) of each of `groups` blocks of the last axis, (..., groups, 1)."""
    blocks = g.unflatten(-1, (groups, -1))
    norm = torch.linalg.vector_norm(blocks, dim=-1, keepdim=True)
    return norm.square_().div_(blocks.shape[-1]).add_(eps).rsqrt_()


def _normalised_gradients(dout: Tensor, g: Tensor, inverse: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of g and weight where out = weight * g * inverse(g). Overwrites g."""
    groups = inverse.shape[-2]
    n = g.unflatten(-1, (groups, -1)).mul_(inverse).flatten(-2)
    product = dout * n
    dweight = product.flatten(0, -2).sum(0)
    mean = product.mul_(weight).unflatten(-1, (groups, -1)).mean(-1, keepdim=True)
    dg = torch.mul(dout, weight, out=product).unflatten(-1, (groups, -1))
    dg.addcmul_(n.unflatten(-1, (groups, -1)), mean, value=-1).mul_(inverse)
    return dg.flatten(-2), dweight


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        full = torch.promote_types(x.dtype, torch.float32)
        inverse = _inverse_rms(x.to(full), 1, eps)
        ctx.save_for_backward(x, weight_D, inverse)
        return (x * inverse[..., 0]).mul_(weight_D.to(full)).to(weight_D.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        x, weight_D, inverse = ctx.saved_tensors
        full = inverse.dtype
        dx, dweight = _normalised_gradients(dout.to(full), x.to(full, copy=True), inverse, weight_D.to(full))
        return dx.to(x.dtype), dweight.to(weight_D.dtype), None


class _GatedReadout(torch.autograd.Function):
    """Keeps y + D x and sigmoid(z); the backward pass forms the rest again without an exponential."""

    @staticmethod
    def forward(
        ctx: Any, y_BTHP: Tensor, x_BTHP: Tensor, D_H: Tensor, z_BTI: Tensor, weight_I: Tensor, eps: float, groups: int
    ) -> Tensor:
        full = D_H.dtype
        v = torch.addcmul(y_BTHP.to(full), x_BTHP.to(full), D_H.unsqueeze(-1)).flatten(2)
        sigmoid = torch.sigmoid(z_BTI.to(full))
        g = (sigmoid * z_BTI).mul_(v)
        inverse = _inverse_rms(g, groups, eps)
        ctx.save_for_backward(v, sigmoid, x_BTHP, D_H, z_BTI, weight_I, inverse)
        g.unflatten(-1, (groups, -1)).mul_(inverse)
        return g.mul_(weight_I.to(full)).to(z_BTI.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout_BTI: Tensor) -> tuple[Tensor | None, ...]:
        v, sigmoid, x_BTHP, D_H, z_BTI, weight_I, inverse = ctx.saved_tensors
        full = D_H.dtype
        gate = sigmoid * z_BTI
        dg, dweight = _normalised_gradients(dout_BTI.to(full), v * gate, inverse, weight_I.to(full))
        # silu'(z) = sigmoid + silu - silu * sigmoid
        slope = torch.addcmul(sigmoid + gate, sigmoid, gate, value=-1)
        dz = slope.mul_(v).mul_(dg).to(z_BTI.dtype)
        dv = gate.mul_(dg).view(x_BTHP.shape)
        dD = torch.mul(dv, x_BTHP, out=dg.view(x_BTHP.shape)).sum((0, 1)).sum(-1)
        dx = (dv * D_H.unsqueeze(-1)).to(x_BTHP.dtype)
        return dv.to(x_BTHP.dtype), dx, dD, dz, dweight.to(weight_I.dtype), None, None


class _GatedSkip(torch.autograd.Function):
    """Keeps y + D x and sigmoid(z)."""

    @staticmethod
    def forward(ctx: Any, y_BTI: Tensor, x_BTI: Tensor, D_I: Tensor, z_BTI: Tensor) -> Tensor:
        full = D_I.dtype
        v = torch.addcmul(y_BTI.to(full), x_BTI.to(full), D_I)
        sigmoid = torch.sigmoid(z_BTI.to(full))
        ctx.save_for_backward(v, sigmoid, x_BTI, D_I, z_BTI)
        return (sigmoid * z_BTI).mul_(v).to(z_BTI.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout_BTI: Tensor) -> tuple[Tensor, ...]:
        v, sigmoid, x_BTI, D_I, z_BTI = ctx.saved_tensors
        dout = dout_BTI.to(D_I.dtype)
        gate = sigmoid * z_BTI
        slope = torch.addcmul(sigmoid + gate, sigmoid, gate, value=-1)
        dz = slope.mul_(v).mul_(dout)
        dv = gate.mul_(dout)
        dD_I = (dv * x_BTI).sum((0, 1))
        dx = (dv * D_I).to(x_BTI.dtype)
        return dv.to(x_BTI.dtype), dx, dD_I, dz.to(z_BTI.dtype)
