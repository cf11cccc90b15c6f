"""The fused scans that the models call, by their real kernels, against the loops over time in float64.

Lengths are awkward on purpose: below a block, one past one, several with a rest. Gradients are those of every argument,
through the outputs and the final state alike.
"""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from models.scans.gated import gated_fused, gated_naive
from models.scans.ssd import ssd_fused, ssd_naive
from tests.models.makers import relative_error

Scan = Callable[..., tuple[Tensor, Tensor]]
LENGTHS = (7, 33, 40, 70)
FP32, BF16 = 5e-6, 2e-2
"""Largest difference over the largest right value; bf16 keeps 8 bits of each factor. Seen: 1e-6 and 1.3e-2."""
FAMILIES: dict[str, tuple[Scan, Scan]] = {
    # Blocks of 16 positions, so that short sequences have several.
    "mamba2": (partial(ssd_fused, chunk=16), ssd_naive),
    "gla": (partial(gated_fused, scale=0.25), partial(gated_naive, scale=0.25)),
    "rwkv6": (gated_fused, gated_naive),
}
HALVED = {"mamba2": ("x", "B_BTGN", "C_BTGN"), "gla": ("q", "k", "v"), "rwkv6": ("q", "k", "v")}
"""Arguments that a model in bf16 gives in bf16: decays, step sizes and states stay in fp32."""


def inputs(family: str, length: int, rows: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(length)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    if family == "mamba2":
        heads, channels, groups, columns = 4, 16, 2, 16
        return {
            "x_BTHP": normal(rows, length, heads, channels),
            "dt_BTH": torch.rand(rows, length, heads, generator=generator, dtype=torch.float64) * 0.5,
            "A_H": -torch.rand(heads, generator=generator, dtype=torch.float64) * 2,
            "B_BTGN": normal(rows, length, groups, columns),
            "C_BTGN": normal(rows, length, groups, columns),
            "h0_BHPN": normal(rows, heads, channels, columns),
        }
    heads, keys, values = 2, 16, 32
    found = {
        "q_BTHK": normal(rows, length, heads, keys),
        "k_BTHK": normal(rows, length, heads, keys),
        "v_BTHV": normal(rows, length, heads, values),
        "g_BTHK": F.logsigmoid(normal(rows, length, heads, keys)) / 4,
        "h0_BHKV": normal(rows, heads, keys, values),
    }
    return {**found, "bonus_HK": normal(heads, keys)} if family == "rwkv6" else found


def outcome(scan: Scan, given: dict[str, Tensor], reset_BT: Tensor | None = None) -> dict[str, Tensor]:
    """Outputs, final state and the gradient of every argument."""
    leaves = {name: value.detach().requires_grad_() for name, value in given.items()}
    y, final = scan(**leaves, reset_BT=reset_BT)
    generator = torch.Generator().manual_seed(5)
    weights = [torch.randn(v.shape, generator=generator, dtype=torch.float64).to(v.dtype) for v in (y, final)]
    gradients = torch.autograd.grad((y, final), list(leaves.values()), weights)
    return {"y": y, "final": final, **dict(zip(leaves, gradients, strict=True))}


def cast(family: str, given: dict[str, Tensor], low: torch.dtype) -> dict[str, Tensor]:
    return {name: value.to(low if name.startswith(HALVED[family]) else torch.float32) for name, value in given.items()}


def assert_as_naive(
    family: str, given: dict[str, Tensor], tolerance: float, reset_BT: Tensor | None = None
) -> dict[str, Tensor]:
    fused, naive = FAMILIES[family]
    found = outcome(fused, given, reset_BT)
    right = outcome(naive, {name: value.double() for name, value in given.items()}, reset_BT)
    errors = {name: relative_error(found[name], right[name]) for name in right}
    assert max(errors.values()) < tolerance, errors
    return found


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_fused_scan_is_the_loop_with_its_state_and_all_gradients(family: str, length: int) -> None:
    assert_as_naive(family, cast(family, inputs(family, length, rows=1), torch.float32), FP32)


@pytest.mark.parametrize("family", FAMILIES)
def test_bf16_inputs_keep_their_digits_and_states_stay_in_fp32(family: str) -> None:
    given = cast(family, inputs(family, 33, rows=1), torch.bfloat16)
    found = assert_as_naive(family, given, BF16)
    assert found["y"].dtype == torch.bfloat16
    assert found["final"].dtype == torch.float32
    assert {name: found[name].dtype for name in given} == {name: value.dtype for name, value in given.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_no_initial_state_is_the_zero_state(family: str) -> None:
    given = cast(family, inputs(family, 7, rows=1), torch.float32)
    state = next(name for name in given if name.startswith("h0"))
    del given[state]
    assert_as_naive(family, given, FP32)


@pytest.mark.parametrize("family", FAMILIES)
def test_resets_cut_rows_apart_and_only_the_first_segment_continues_the_state(family: str) -> None:
    reset_BT = torch.zeros(2, 20, dtype=torch.bool)
    reset_BT[0, 8] = reset_BT[0, 17] = reset_BT[0, 18] = reset_BT[1, 0] = True
    given = cast(family, inputs(family, 20, rows=2), torch.float32)
    found = assert_as_naive(family, given, FP32, reset_BT)
    state = next(name for name in given if name.startswith("h0"))
    assert bool((found[state][0] != 0).any())
    assert not bool((found[state][1] != 0).any())
