"""Small models, tokens and scan inputs for the tests of this folder."""

from dataclasses import replace

import torch
from torch import Tensor

from models.interface import State
from models.mamba2 import Mamba2LanguageModel
from models.sizes import Mamba2Dims

TINY = Mamba2Dims(d_model=16, n_layer=2, vocab_size=19, d_state=8, headdim=4, chunk=16, a_init_range=(0.02, 4.0))


def tiny_model(dtype: torch.dtype = torch.float64, scan: str = "chunked", ngroups: int = 1) -> Mamba2LanguageModel:
    return Mamba2LanguageModel(replace(TINY, ngroups=ngroups), seed=0, scan=scan).to(dtype)


def tokens(rows: int, length: int, seed: int = 0, vocab_size: int = TINY.vocab_size) -> Tensor:
    return torch.randint(vocab_size, (rows, length), generator=torch.Generator().manual_seed(seed))


def random_state(model: Mamba2LanguageModel, rows: int, seed: int = 0) -> State:
    generator = torch.Generator().manual_seed(seed)
    return [
        {name: torch.randn(part.shape, generator=generator, dtype=part.dtype) for name, part in layer.items()}
        for layer in model.zero_state(rows)
    ]


def scan_inputs(
    rows: int = 2,
    length: int = 12,
    heads: int = 4,
    channels: int = 3,
    groups: int = 1,
    columns: int = 5,
    fastest: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> list[Tensor]:
    """Random x, dt, A, B, C, h0 as leaves; the log-decay of a position lies between 0 and -fastest / 10."""
    generator = torch.Generator().manual_seed(rows * 1000 + length)
    x = torch.randn(rows, length, heads, channels, generator=generator, dtype=torch.float64)
    dt = torch.rand(rows, length, heads, generator=generator, dtype=torch.float64) * 0.1
    A = -torch.rand(heads, generator=generator, dtype=torch.float64) * fastest
    B, C = torch.randn(2, rows, length, groups, columns, generator=generator, dtype=torch.float64)
    h0 = torch.randn(rows, heads, channels, columns, generator=generator, dtype=torch.float64)
    return [value.to(dtype).requires_grad_() for value in (x, dt, A, B, C, h0)]


def relative_error(found: Tensor, right: Tensor) -> float:
    """Largest difference over the largest magnitude of what is right."""
    found, right = found.detach().double(), right.detach().double()
    return float((found - right).abs().max() / right.abs().max())
