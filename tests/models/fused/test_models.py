"""Whole models over fused scans against the same models over loops in float64, cut in two with the state carried.

Of Mamba-2 the convolution is the plain one: that of causal-conv1d is CUDA alone, as is all of Mamba-1.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from models import conv_fused
from models.interface import RecurrentLanguageModel, State
from models.mamba2.dims import Mamba2Dims
from models.mamba2.model import Mamba2LanguageModel
from models.registry import dims, model_of
from tests.models.makers import random_model, random_state, relative_error, tokens

TOLERANCE = 2e-5


def fused_model(architecture: str, monkeypatch: pytest.MonkeyPatch) -> RecurrentLanguageModel:
    size = replace(dims(architecture, "tiny"), n_layer=1)
    if architecture == "mamba2":
        monkeypatch.setitem(conv_fused.CONVOLUTIONS, "fused", conv_fused.CONVOLUTIONS["chunked"])
        assert isinstance(size, Mamba2Dims)
        model = Mamba2LanguageModel(size, seed=0, kernel="fused")
        # Blocks of 256 positions would be empty but for a few, and the interpreter would work through all of them.
        mixer: Any = model.backbone.layers[0].mixer
        mixer.chunk = 16
        return model
    return model_of(size, seed=0, kernel="fused")


def outcome(model: RecurrentLanguageModel, x: Tensor, start: State, cuts: list[int]) -> dict[str, Tensor]:
    state, pieces = start, []
    for low, high in zip([0, *cuts], [*cuts, x.shape[1]], strict=True):
        hidden, state = model(x[:, low:high], state)
        pieces.append(hidden)
    (model.head(torch.cat(pieces, 1)).square().sum() + state[0]["recurrent"].square().sum()).backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"hidden": torch.cat(pieces, 1), **state[0], **gradients}


@pytest.mark.parametrize("architecture", ["mamba2", "gla", "rwkv6"])
def test_a_fused_model_is_the_naive_one_with_its_gradients(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = fused_model(architecture, monkeypatch)
    values = {
        name: value
        for name, value in random_model(architecture, torch.float32).state_dict().items()
        if name in model.state_dict()
    }
    model.load_state_dict(values)
    naive = model_of(model.dims, seed=0, kernel="naive").double()
    naive.load_state_dict(values)
    x, start = tokens(1, 22), random_state(model, 1)
    found = outcome(model, x, start, cuts=[7])
    right = outcome(naive, x, [{name: part.double() for name, part in layer.items()} for layer in start], cuts=[])
    assert found.keys() == right.keys()
    errors = {name: relative_error(found[name], right[name]) for name in right}
    assert max(errors.values()) < TOLERANCE, errors
