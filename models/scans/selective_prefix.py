"""An initial state for selective scans that know none: tokens before the sequence write it.

Fused kernels, such as `selective_scan_fn` of mamba_ssm, start from zero. A state of N columns is the sum of N outer
products, and each token adds one: before the sequence, token n adds column n of h0 with

    dt = tiny,    u = h0[:, n] / tiny,    B = e_n,    C = 0,    tiny = 2^-64

dt times u is h0[:, n] to the bit, since `tiny` is a power of two. The decay exp(tiny A) rounds to one, so later prefix
tokens leave the column as it is, and neither a factor that makes up for decay nor a share in the gradient of A is
needed. Gradients of every argument are those of the kernel. What it costs: N tokens, 2 N if u is bf16, for one bf16
number would round h0 to 2^-9; the second N write what the first lost, and 2^-17 remains.

Where a kernel gives its final state no gradient (that of mamba_ssm does not), `read_final` appends N tokens with
dt = tiny, u = 0 and C = e_n: they read the final state out as outputs, which do have one.

mamba_ssm's kernel works in pieces of 2048 tokens: 2048 tokens and a prefix of 16 cost a second, nearly empty piece,
2032 tokens cost one. Its layout is (B, D, T), and it wants dt, B and C in the dtype of u, dt after softplus with
`delta_softplus` off: `tiny` is exact in bf16 too.
"""

from typing import Protocol

import torch
from torch import Tensor

TINY = {torch.float64: 2.0**-256, torch.float32: 2.0**-64, torch.bfloat16: 2.0**-64}
"""Step size of the added tokens by dtype of dt: far below rounding beside one, and far from the ends of the dtype."""


class ZeroStateScan(Protocol):
    """A selective scan that starts from the zero state."""

    def __call__(
        self, u_BTD: Tensor, dt_BTD: Tensor, A_DN: Tensor, B_BTN: Tensor, C_BTN: Tensor, /
    ) -> tuple[Tensor, Tensor]:
        """Return outputs (B, T, D) and the final state (B, D, N), as models.scans.selective.SelectiveScan does."""
        ...


def with_initial_state(
    kernel: ZeroStateScan,
    u_BTD: Tensor,
    dt_BTD: Tensor,
    A_DN: Tensor,
    B_BTN: Tensor,
    C_BTN: Tensor,
    h0_BDN: Tensor,
    *,
    read_final: bool = False,
) -> tuple[Tensor, Tensor]:
    """Run `kernel` from the state h0 instead of zero.

    Args:
        kernel: scan from the zero state.
        u_BTD: inputs; fp32, float64 or bf16.
        dt_BTD: step sizes, positive, after bias and softplus; fp32, float64 or bf16.
        A_DN: negative decay rates.
        B_BTN: input vectors.
        C_BTN: output vectors.
        h0_BDN: state before position 0, fp32 or float64; below 1e19 in size unless u and dt are float64.
        read_final: read the final state's gradient through outputs, for kernels that give it none.

    Returns:
        Outputs (B, T, D) and the final state (B, D, N), in the dtypes that the kernel gives them.

    Raises:
        ValueError: if u or dt has another dtype.
    """
    T, N = u_BTD.shape[1], A_DN.shape[1]
    tiny = _tiny(u_BTD, dt_BTD)
    before = _writing_tokens(u_BTD, B_BTN, h0_BDN / tiny)
    after = _reading_tokens(u_BTD, B_BTN, N if read_final else 0)
    added = before[0].shape[1]
    u, B, C = (torch.cat(parts, 1) for parts in zip(before, (u_BTD, B_BTN, C_BTN), after, strict=True))
    dt = torch.cat([_constant(dt_BTD, added, tiny), dt_BTD, _constant(dt_BTD, after[0].shape[1], tiny)], 1)
    y, final_BDN = kernel(u, dt, A_DN, B, C)
    if read_final:
        read_BDN = y[:, added + T :].transpose(1, 2).to(final_BDN.dtype)
        # The kernel's own value, which it may keep in a wider dtype than outputs, with the gradient of what was read.
        final_BDN = final_BDN.detach() + (read_BDN - read_BDN.detach())
    return y[:, added : added + T], final_BDN


def _tiny(u_BTD: Tensor, dt_BTD: Tensor) -> float:
    """Step size of the added tokens: the larger of the two dtypes', for 1 / tiny must fit into u."""
    for name, value in (("u", u_BTD), ("dt", dt_BTD)):
        if value.dtype not in TINY:
            raise ValueError(f"{name} is {value.dtype}, which cannot carry an initial state; use bfloat16 or float32")
    return max(TINY[u_BTD.dtype], TINY[dt_BTD.dtype])


def _writing_tokens(u_BTD: Tensor, B_BTN: Tensor, scaled_BDN: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return u, B and C of the tokens that write the state, h0 / tiny, column by column."""
    scaled_BND = scaled_BDN.transpose(1, 2)
    terms = [scaled_BND.to(u_BTD.dtype)]
    if u_BTD.dtype == torch.bfloat16:
        # The rounded value stays in the graph: it cancels the gradient of the remainder, and h0 gets that of one token.
        terms.append((scaled_BND - terms[0].to(scaled_BND.dtype)).to(u_BTD.dtype))
    B = _identity(B_BTN).repeat(1, len(terms), 1)
    return torch.cat(terms, 1), B, torch.zeros_like(B)


def _reading_tokens(u_BTD: Tensor, B_BTN: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return u, B and C of the tokens that read the state, column by column."""
    C = _identity(B_BTN)[:, :count]
    return _constant(u_BTD, count, 0.0), torch.zeros_like(C), C


def _identity(B_BTN: Tensor) -> Tensor:
    """One token per state column, (B, N, N)."""
    rows, _, N = B_BTN.shape
    return torch.eye(N, dtype=B_BTN.dtype, device=B_BTN.device).expand(rows, N, N)


def _constant(v_BTD: Tensor, tokens: int, value: float) -> Tensor:
    return v_BTD.new_full((v_BTD.shape[0], tokens, v_BTD.shape[2]), value)
