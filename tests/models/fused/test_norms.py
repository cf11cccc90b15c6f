"""Gated norms and the gated MLP's product by their real kernels, against the plain forms in float64."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from models.norms import gated_readout
from models.norms_fused import gated_norm, gated_norm_fused, gated_readout_fused, swiglu, swiglu_fused
from tests.models.makers import relative_error

Form = Callable[..., Tensor]
TOLERANCES = {torch.float32: 5e-6, torch.bfloat16: 2e-2}


def plain_readout(v_BTI: Tensor, z_BTI: Tensor, weight_I: Tensor, groups: int) -> Tensor:
    zero_H = torch.zeros(1, dtype=v_BTI.dtype)
    return gated_readout(
        v_BTI.unsqueeze(2), torch.zeros_like(v_BTI).unsqueeze(2), zero_H, z_BTI, weight_I, 1e-5, groups
    )


FORMS: dict[str, tuple[Form, Form, list[tuple[int, ...]]]] = {
    # The gate is a part of wider rows, as the mixer cuts it out of its projection.
    **{
        f"readout in {groups} groups": (
            lambda v, wide, w, groups=groups: gated_readout_fused(v, wide[..., 8:32], w, 1e-5, groups),
            lambda v, wide, w, groups=groups: plain_readout(v, wide[..., 8:32], w, groups),
            [(2, 7, 24), (2, 7, 40), (24,)],
        )
        for groups in (1, 3)
    },
    "norm of heads": (
        partial(gated_norm_fused, eps=1e-5),
        partial(gated_norm, eps=1e-5),
        [(2, 7, 3, 20), (2, 7, 3, 20), (20,)],
    ),
    "gated MLP": (swiglu_fused, swiglu, [(2, 7, 20), (2, 7, 20)]),
}


def outcome(form: Form, given: list[Tensor]) -> list[Tensor]:
    leaves = [value.detach().requires_grad_() for value in given]
    out = form(*leaves)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(out.dtype)
    return [out, *torch.autograd.grad(out, leaves, weights)]


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", FORMS)
def test_a_fused_form_is_the_plain_one_with_its_gradients(name: str, dtype: torch.dtype) -> None:
    fused, plain, shapes = FORMS[name]
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]
    found, right = outcome(fused, given), outcome(plain, [value.double() for value in given])
    assert [value.dtype for value in found] == [dtype] * len(found)
    errors = [relative_error(one, other) for one, other in zip(found, right, strict=True)]
    assert max(errors) < TOLERANCES[dtype], errors
