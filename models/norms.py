"""RMS norms, plain and gated."""

import torch
from torch import Tensor
from torch.nn import functional as F


def rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """Scale the last axis to unit root mean square, then by `weight_D`; result in the dtype of the weight."""
    return F.rms_norm(x, (x.shape[-1],), weight_D.to(x.dtype), eps).to(weight_D.dtype)


def gated_readout(
    y_BTHP: Tensor, x_BTHP: Tensor, D_H: Tensor, z_BTI: Tensor, weight_I: Tensor, eps: float, groups: int
) -> Tensor:
    """Return RMSNorm((y + D x) * silu(z)) over I = H * P channels in `groups` blocks, in the dtype of z."""
    acc = torch.promote_types(z_BTI.dtype, torch.float32)
    y = (y_BTHP.to(acc) + x_BTHP.to(acc) * D_H[:, None]).flatten(2) * F.silu(z_BTI.to(acc))
    u = F.rms_norm(y.unflatten(-1, (groups, -1)), (y.shape[-1] // groups,), None, eps).flatten(2)
    return (u * weight_I.to(acc)).to(z_BTI.dtype)
