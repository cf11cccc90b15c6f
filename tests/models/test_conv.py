import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from models.conv import causal_conv_silu


def conv_inputs(length: int, rows: int = 2, channels: int = 5, taps: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    shapes = [(rows, length, channels), (channels, 1, taps), (channels,), (rows, channels, taps - 1)]
    return [torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]


@pytest.mark.parametrize("length", [1, 2, 3, 4, 11])
def test_equals_a_grouped_convolution_of_state_and_inputs(length: int) -> None:
    x, weight, bias, state = conv_inputs(length)
    padded = torch.cat([state, x.transpose(1, 2)], dim=2)
    right = F.silu(F.conv1d(padded, weight, bias, groups=5)).transpose(1, 2)
    activations, after = causal_conv_silu(x, weight, bias, state)
    torch.testing.assert_close(activations, right)
    torch.testing.assert_close(after, padded[:, :, -3:])


@pytest.mark.parametrize("length", [1, 2, 3, 7])
def test_gradcheck_including_both_states(length: int) -> None:
    assert torch.autograd.gradcheck(causal_conv_silu, conv_inputs(length))


def test_no_state_is_the_zero_state() -> None:
    x, weight, bias, state = conv_inputs(6)
    for without, zero in zip(
        causal_conv_silu(x, weight, bias), causal_conv_silu(x, weight, bias, torch.zeros_like(state)), strict=True
    ):
        assert torch.equal(without, zero)


def test_state_holds_raw_inputs_oldest_first() -> None:
    x, weight, bias, state = conv_inputs(2)
    _, after = causal_conv_silu(x, weight, bias, state)
    assert torch.equal(after[:, :, 0], state[:, :, 2])
    assert torch.equal(after[:, :, 1:], x.transpose(1, 2))


@pytest.mark.parametrize("at", [0, 1, 3, 5])
def test_a_reset_hides_everything_before_it(at: int) -> None:
    x, weight, bias, state = conv_inputs(6)
    reset = torch.zeros(2, 6, dtype=torch.bool)
    reset[:, at] = True
    activations, after = causal_conv_silu(x, weight, bias, state, reset)
    before, _ = causal_conv_silu(x[:, :at], weight, bias, state) if at else (x[:, :0], state)
    alone, alone_after = causal_conv_silu(x[:, at:], weight, bias)
    torch.testing.assert_close(activations, torch.cat([before, alone], 1))
    torch.testing.assert_close(after, alone_after)


def test_resets_nowhere_change_nothing() -> None:
    x, weight, bias, state = conv_inputs(6)
    found = causal_conv_silu(x, weight, bias, state, torch.zeros(2, 6, dtype=torch.bool))
    for masked, plain in zip(found, causal_conv_silu(x, weight, bias, state), strict=True):
        torch.testing.assert_close(masked, plain)
