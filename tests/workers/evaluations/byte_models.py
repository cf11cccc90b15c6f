"""Tiny models over bytes and windows of the shipped corpus, for the tests of evaluations."""

from pathlib import Path

import torch

from models.interface import RecurrentLanguageModel
from models.registry import dims, model_of
from storage.settings import DataSettings
from storage.token_cache import open_token_cache
from storage.windows import EvaluationWindow, evaluation_windows

BYTES = 256


def byte_model(
    architecture: str, dtype: torch.dtype = torch.float64, vocab_size: int = BYTES, seed: int = 0
) -> RecurrentLanguageModel:
    """A tiny model of that architecture in which every parameter matters, also those that start at zero."""
    model = model_of(dims(architecture, "tiny", vocab_size), seed=seed, kernel="chunked")
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    return model.to(dtype)


def forgetful_model(dtype: torch.dtype = torch.float64) -> RecurrentLanguageModel:
    """A Mamba-2 whose recurrent state decays to nothing in one token: its two convolutions alone remember."""
    model = byte_model("mamba2", dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("A_log"):
                parameter.fill_(20.0)
    return model


def report_windows(cache: Path, length: int, count: int) -> list[EvaluationWindow]:
    return evaluation_windows(open_token_cache(DataSettings(), cache), "report", length, count)
