"""Small models, tokens and scan inputs for the tests of this folder."""

from dataclasses import replace

import torch
from torch import Tensor

from models.interface import RecurrentLanguageModel, State
from models.mamba2.dims import SIZES
from models.mamba2.model import Mamba2LanguageModel
from models.registry import dims, model_of

TINY = SIZES["tiny"]


def tiny_model(dtype: torch.dtype = torch.float64, kernel: str = "chunked", ngroups: int = 1) -> Mamba2LanguageModel:
    return Mamba2LanguageModel(replace(TINY, ngroups=ngroups), seed=0, kernel=kernel).to(dtype)


def random_model(
    architecture: str, dtype: torch.dtype = torch.float64, kernel: str = "chunked"
) -> RecurrentLanguageModel:
    """A tiny model of that architecture in which every parameter matters, also those that start at zero."""
    model = model_of(dims(architecture, "tiny"), seed=0, kernel=kernel)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    return model.to(dtype)


def tokens(rows: int, length: int, seed: int = 0, vocab_size: int = TINY.vocab_size) -> Tensor:
    return torch.randint(vocab_size, (rows, length), generator=torch.Generator().manual_seed(seed))


def random_state(model: RecurrentLanguageModel, rows: int, seed: int = 0) -> State:
    generator = torch.Generator().manual_seed(seed)
    return [
        {name: torch.randn(part.shape, generator=generator, dtype=part.dtype) for name, part in layer.items()}
        for layer in model.zero_state(rows)
    ]


def assert_states_close(found: State, right: State, tolerance: float) -> None:
    for found_layer, right_layer in zip(found, right, strict=True):
        assert found_layer.keys() == right_layer.keys()
        for part in right_layer:
            assert relative_error(found_layer[part], right_layer[part]) <= tolerance, part


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
