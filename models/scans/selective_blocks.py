"""One block of the selective scan: some rows, channels and positions, a loop over time, and its gradients by hand.

Decays enter only as exp(dt_t A) of single positions, which no decay can overflow. Channels are the innermost
dimension and state columns lie outside it, so that every operation runs over long contiguous stretches.

Legend: Q positions of a block, T positions, R rows, N state column, D channel, S = Q + 1, M = Q * R.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class LaneInputs:
    """Inputs of some rows and channels over all time, time first and contiguous, in the dtype of the state."""

    u_TRD: Tensor
    dt_TRD: Tensor
    v_TRD: Tensor
    """What enters the state, dt * u."""
    A_ND: Tensor
    rate_ND: Tensor
    """A / log(2), because torch computes powers of two almost twice as fast as those of e on a CPU."""
    B_TRN: Tensor
    C_TRN: Tensor
    reset_TR: Tensor | None


@dataclass(frozen=True)
class LaneGrads:
    """Where the blocks of a lane write its gradients: of v with dt held fixed, of dt with v held fixed."""

    v_TRD: Tensor
    dt_TRD: Tensor
    A_ND: Tensor
    """Zero at first: blocks add to it."""
    B_TRN: Tensor
    C_TRN: Tensor


class Workspace:
    """Memory that all blocks of a pass use in turn: fresh pages cost more than what is computed in them."""

    def __init__(self, positions: int, elements: int, like: Tensor, backward: bool) -> None:
        """Take memory for blocks of so many positions, with so many elements of state each, in the dtype of `like`."""
        self.positions = positions
        self._decay = like.new_empty(positions * elements)
        self._state = like.new_empty((positions + 1) * elements)
        self._grad = like.new_empty(positions * elements if backward else 0)

    def shaped(self, rows: int, columns: int, channels: int) -> "LaneWorkspace":
        """Lay the memory out for the blocks of one lane."""
        shape = (rows, columns, channels)
        size = rows * columns * channels
        decay_QRND = self._decay[: self.positions * size].view(-1, *shape)
        state_SRND = self._state[: (self.positions + 1) * size].view(-1, *shape)
        grad_QRND = self._grad[: self.positions * size].view(-1, *shape)
        return LaneWorkspace(decay_QRND, state_SRND, grad_QRND)


class LaneWorkspace:
    """Decays, states (the one before the block first) and gradients of states, whole and cut into positions."""

    def __init__(self, decay_QRND: Tensor, state_SRND: Tensor, grad_QRND: Tensor) -> None:
        self.decay_QRND, self.state_SRND, self.grad_QRND = decay_QRND, state_SRND, grad_QRND
        self.decays, self.states, self.grads = decay_QRND.unbind(0), state_SRND.unbind(0), grad_QRND.unbind(0)


def run_states(lane: LaneInputs, at: slice, work: LaneWorkspace) -> Tensor:
    """Fill the decays and states of positions `at` after the start state, states[0]; return the states (Q, R, N, D)."""
    length = at.stop - at.start
    decay_QRND, state_QRND = work.decay_QRND[:length], work.state_SRND[1 : length + 1]
    torch.mul(lane.dt_TRD[at].unsqueeze(2), lane.rate_ND, out=decay_QRND).exp2_()
    if lane.reset_TR is not None:
        decay_QRND.masked_fill_(lane.reset_TR[at, :, None, None], 0)
    torch.mul(lane.v_TRD[at].unsqueeze(2), lane.B_TRN[at].unsqueeze(3), out=state_QRND)
    _chain(work.states[1 : length + 1], work.decays[:length], work.states[:length])
    return state_QRND


def forward_block(lane: LaneInputs, at: slice, work: LaneWorkspace, y_TRD: Tensor) -> Tensor:
    """Run positions `at` from states[0], write their outputs to `y_TRD`, and return the last state, a view."""
    state_QRND = run_states(lane, at, work)
    _over_columns(lane.C_TRN[at], state_QRND, out=y_TRD[at])
    return state_QRND[-1]


def backward_block(
    lane: LaneInputs,
    at: slice,
    start_RND: Tensor,
    dy_TRD: Tensor,
    dstate_RND: Tensor,
    work: LaneWorkspace,
    grads: LaneGrads,
) -> None:
    """Run positions `at` again and write the gradients of their inputs to `grads`.

    Args:
        lane: inputs, as in the forward pass.
        at: positions.
        start_RND: state before them.
        dy_TRD: gradient of the outputs.
        dstate_RND: gradient of the state after the block; becomes that of the state before it.
        work: memory.
        grads: written to.
    """
    work.states[0].copy_(start_RND)
    state_QRND = run_states(lane, at, work)
    length = at.stop - at.start
    decay_QRND, grad_QRND = work.decay_QRND[:length], work.grad_QRND[:length]
    _over_channels(dy_TRD[at], state_QRND, out=grads.C_TRN[at])
    torch.mul(dy_TRD[at].unsqueeze(2), lane.C_TRN[at].unsqueeze(3), out=grad_QRND)
    work.grads[length - 1].add_(dstate_RND)
    later_to_earlier = work.grads[:length][::-1]
    _chain(later_to_earlier[1:], work.decays[1:length][::-1], later_to_earlier[:-1])
    torch.mul(work.decays[0], work.grads[0], out=dstate_RND)
    _over_channels(lane.v_TRD[at], grad_QRND, out=grads.B_TRN[at])
    _over_columns(lane.B_TRN[at], grad_QRND, out=grads.v_TRD[at])
    # Now the gradient of each log-decay dt_t A, in the place of the decays.
    dlog_QRND = decay_QRND.mul_(grad_QRND).mul_(work.state_SRND[:length])
    _add_over_positions(lane.dt_TRD[at], dlog_QRND, grads.A_ND, spare_QRND=grad_QRND)
    torch.sum(dlog_QRND.mul_(lane.A_ND), 2, out=grads.dt_TRD[at])


def _chain(totals: tuple[Tensor, ...], factors: tuple[Tensor, ...], values: tuple[Tensor, ...]) -> None:
    """Add factor times value to each total, one after the other: a value is the total before."""
    if totals and totals[0].device.type == "cpu":
        # A CPU works through the lists in order. One call for all halves the time of short rows, where calling costs
        # as much as computing.
        torch._foreach_addcmul_(totals, factors, values)
        return
    for total, factor, value in zip(totals, factors, values, strict=True):
        total.addcmul_(factor, value)


def _over_columns(weight_QRN: Tensor, value_QRND: Tensor, out: Tensor) -> None:
    """Write the sum over state columns of weight times value to `out` (Q, R, D)."""
    weight_M1N, value_MND = weight_QRN.flatten(0, 1).unsqueeze(1), value_QRND.flatten(0, 1)
    torch.bmm(weight_M1N, value_MND, out=out.view(-1, 1, out.shape[2]))


def _over_channels(weight_QRD: Tensor, value_QRND: Tensor, out: Tensor) -> None:
    """Write the sum over channels of weight times value to `out` (Q, R, N)."""
    weight_M1D, value_MND = weight_QRD.flatten(0, 1).unsqueeze(1), value_QRND.flatten(0, 1)
    torch.bmm(weight_M1D, value_MND.transpose(1, 2), out=out.view(-1, 1, out.shape[2]))


def _add_over_positions(weight_QRD: Tensor, value_QRND: Tensor, total_ND: Tensor, spare_QRND: Tensor) -> None:
    """Add the sum over positions and rows of weight times value to `total_ND`; `spare_QRND` is overwritten."""
    torch.mul(value_QRND, weight_QRD.unsqueeze(2), out=spare_QRND)
    products_EM = spare_QRND.view(-1, total_ND.numel()).t()
    total_ND.view(-1).addmv_(products_EM, products_EM.new_ones(products_EM.shape[1]))
