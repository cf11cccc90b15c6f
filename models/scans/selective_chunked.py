"""The selective scan in blocks small enough for a processor's cache, with hand-written gradients.

The batch is cut into lanes of a few rows and channels; each runs through time block by block
(`models.scans.selective_blocks`). Beyond inputs and outputs only the states between blocks are kept; the backward
pass recomputes the rest block by block, so that no tensor of B * T * D * N elements ever exists.

Legend: B batch, T position, D channel, N state column; of one lane: R rows, K blocks, and D its own channels.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from models.scans.selective_blocks import LOG2_E, LaneGrads, LaneInputs, Workspace, backward_block, forward_block

BLOCK_ELEMENTS = {"cpu": 2**18}
"""Elements of state (rows, positions, channels, columns) per block: 1 MiB of fp32, near the cache of a core."""
ACCELERATOR_BLOCK_ELEMENTS = 2**24


def selective_chunked(
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
    """Run the recurrence in blocks of `chunk` positions, or of several chunks where the state is small.

    See models.scans.selective.SelectiveScan; differentiable once.
    """
    h0 = None if h0_BDN is None else h0_BDN.to(dt_BTD.dtype)
    y_BTD, hT_BDN = _ChunkedScan.apply(u_BTD, dt_BTD, A_DN, B_BTN, C_BTN, h0, reset_BT, chunk)
    return y_BTD, hT_BDN


@dataclass(frozen=True)
class Plan:
    """How a scan is cut: at most so many rows, channels and positions per block."""

    rows: int
    channels: int
    positions: int

    def lanes(self, B: int, D: int) -> list[tuple[slice, slice]]:
        """Ranges of rows and channels that run through time together."""
        rows = [slice(low, min(low + self.rows, B)) for low in range(0, B, self.rows)]
        channels = [slice(low, min(low + self.channels, D)) for low in range(0, D, self.channels)]
        return [(row, channel) for row in rows for channel in channels]

    def blocks(self, T: int) -> list[slice]:
        """Ranges of positions."""
        return [slice(start, min(start + self.positions, T)) for start in range(0, T, self.positions)]


def plan_blocks(B: int, T: int, D: int, N: int, chunk: int, device_type: str) -> Plan:
    """Return the largest blocks that fit: first one chunk of channels, then of rows, then of more chunks."""
    fits = BLOCK_ELEMENTS.get(device_type, ACCELERATOR_BLOCK_ELEMENTS)
    chunk = min(chunk, T)
    pieces = -(-D // max(1, fits // (chunk * N)))
    channels = -(-D // pieces)
    rows = min(B, max(1, fits // (chunk * N * channels)))
    chunks = max(1, fits // (chunk * N * channels * rows))
    return Plan(rows, channels, min(T, chunk * chunks))


@dataclass(frozen=True)
class _Inputs:
    """Tensors that every lane reads."""

    u_BTD: Tensor
    dt_BTD: Tensor
    A_DN: Tensor
    B_BTN: Tensor
    C_BTN: Tensor
    reset_BT: Tensor | None

    def plan(self, chunk: int) -> Plan:
        """Cut the scan."""
        B, T, D = self.u_BTD.shape
        return plan_blocks(B, T, D, self.A_DN.shape[1], chunk, self.u_BTD.device.type)

    def workspace(self, plan: Plan, backward: bool) -> Workspace:
        """Memory for the blocks of a plan."""
        elements = plan.rows * plan.channels * self.A_DN.shape[1]
        return Workspace(plan.positions, elements, self.dt_BTD, backward)

    def lane(self, row: slice, channel: slice) -> LaneInputs:
        """Cut out a lane."""
        u, dt = (self.time_first(v[row, :, channel]) for v in (self.u_BTD, self.dt_BTD))
        A_ND = self.A_DN[channel].t().contiguous()
        B, C = (self.time_first(v[row]) for v in (self.B_BTN, self.C_BTN))
        reset_TR = None if self.reset_BT is None else self.reset_BT[row].t()
        return LaneInputs(u, dt, u * dt, A_ND, A_ND * LOG2_E, B, C, reset_TR)

    def time_first(self, v_RTX: Tensor) -> Tensor:
        """Copy (R, T, any) to (T, R, any) in the dtype of the state."""
        return v_RTX.transpose(0, 1).to(self.dt_BTD.dtype).contiguous()


class _ChunkedScan(torch.autograd.Function):
    """The scan, lane by lane."""

    @staticmethod
    def forward(
        ctx: Any,
        u_BTD: Tensor,
        dt_BTD: Tensor,
        A_DN: Tensor,
        B_BTN: Tensor,
        C_BTN: Tensor,
        h0_BDN: Tensor | None,
        reset_BT: Tensor | None,
        chunk: int,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        inputs = _Inputs(u_BTD, dt_BTD, A_DN, B_BTN, C_BTN, reset_BT)
        plan = inputs.plan(chunk)
        work = inputs.workspace(plan, backward=False)
        B, T, D = u_BTD.shape
        y_BTD = u_BTD.new_empty(B, T, D)
        hT_BDN = dt_BTD.new_empty(B, *A_DN.shape)
        kept = []
        for row, channel in plan.lanes(B, D):
            start_RDN = None if h0_BDN is None else h0_BDN[row, channel]
            starts_KRND, y_TRD, after_RND = _forward_lane(
                inputs.lane(row, channel), plan, start_RDN, work, keep=any(ctx.needs_input_grad)
            )
            kept.append(starts_KRND)
            y_BTD[row, :, channel] = y_TRD.transpose(0, 1)
            hT_BDN[row, channel] = after_RND.transpose(1, 2)
        ctx.save_for_backward(u_BTD, dt_BTD, A_DN, B_BTN, C_BTN, reset_BT)
        ctx.plan, ctx.kept = plan, kept
        return y_BTD, hT_BDN

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_BTD: Tensor | None, dhT_BDN: Tensor | None) -> tuple[Tensor | None, ...]:
        u_BTD, dt_BTD, A_DN, B_BTN, C_BTN, reset_BT = ctx.saved_tensors
        inputs = _Inputs(u_BTD, dt_BTD, A_DN, B_BTN, C_BTN, reset_BT)
        plan = ctx.plan
        work = inputs.workspace(plan, backward=True)
        dy_BTD = torch.zeros_like(u_BTD) if dy_BTD is None else dy_BTD
        dh_BDN = dt_BTD.new_zeros(u_BTD.shape[0], *A_DN.shape)
        if dhT_BDN is not None:
            dh_BDN.copy_(dhT_BDN)
        du_BTD, ddt_BTD, dA_DN = torch.empty_like(u_BTD), torch.empty_like(dt_BTD), torch.zeros_like(A_DN)
        # Lanes add to these two, in the dtype of the state.
        dB_BTN, dC_BTN = (torch.zeros_like(v, dtype=dt_BTD.dtype) for v in (B_BTN, C_BTN))
        for (row, channel), starts_KRND in zip(plan.lanes(u_BTD.shape[0], u_BTD.shape[2]), ctx.kept, strict=True):
            lane = inputs.lane(row, channel)
            dy_TRD = inputs.time_first(dy_BTD[row, :, channel])
            dh_RND = dh_BDN[row, channel].transpose(1, 2).contiguous()
            own = _backward_lane(lane, plan, starts_KRND, dy_TRD, dh_RND, work)
            du_BTD[row, :, channel] = (own.v_TRD * lane.dt_TRD).transpose(0, 1)
            ddt_BTD[row, :, channel] = own.dt_TRD.addcmul_(own.v_TRD, lane.u_TRD).transpose(0, 1)
            dA_DN[channel] += own.A_ND.t()
            dB_BTN[row] += own.B_TRN.transpose(0, 1)
            dC_BTN[row] += own.C_TRN.transpose(0, 1)
            dh_BDN[row, channel] = dh_RND.transpose(1, 2)
        dh0 = dh_BDN if ctx.needs_input_grad[5] else None
        return du_BTD, ddt_BTD, dA_DN, dB_BTN.to(B_BTN.dtype), dC_BTN.to(C_BTN.dtype), dh0, None, None


def _forward_lane(
    lane: LaneInputs, plan: Plan, start_RDN: Tensor | None, memory: Workspace, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the states before the blocks (K, R, N, D; none unless `keep`), the outputs and the last state."""
    (T, R, D), N = lane.u_TRD.shape, lane.B_TRN.shape[2]
    blocks = plan.blocks(T)
    work = memory.shaped(R, N, D)
    starts_KRND = lane.dt_TRD.new_empty(len(blocks) if keep else 0, R, N, D)
    y_TRD = torch.empty_like(lane.u_TRD)
    state_RND = work.states[0]
    if start_RDN is None:
        state_RND.zero_()
    else:
        state_RND.copy_(start_RDN.transpose(1, 2))
    for index, at in enumerate(blocks):
        if keep:
            starts_KRND[index] = state_RND
        state_RND.copy_(forward_block(lane, at, work, y_TRD))
    return starts_KRND, y_TRD, state_RND


def _backward_lane(
    lane: LaneInputs, plan: Plan, starts_KRND: Tensor, dy_TRD: Tensor, dstate_RND: Tensor, memory: Workspace
) -> LaneGrads:
    """Return the gradients of a lane; `dstate_RND`, of the last state, becomes that of the first."""
    (T, R, D), N = lane.u_TRD.shape, lane.B_TRN.shape[2]
    work = memory.shaped(R, N, D)
    dv, ddt, dB, dC = (torch.empty_like(v) for v in (lane.v_TRD, lane.dt_TRD, lane.B_TRN, lane.C_TRN))
    grads = LaneGrads(dv, ddt, torch.zeros_like(lane.A_ND), dB, dC)
    for at, start_RND in reversed(list(zip(plan.blocks(T), starts_KRND, strict=True))):
        backward_block(lane, at, start_RND, dy_TRD, dstate_RND, work, grads)
    return grads
