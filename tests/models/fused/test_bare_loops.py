"""The bare loops that speeds are compared with compute what our models compute; else the comparison means nothing."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.gpu_bare import BARE
from models.registry import dims, model_of
from tests.models.makers import random_model, relative_error, tokens


def causal_conv1d_fn(x: Tensor, weight: Tensor, bias: Tensor, *, activation: str) -> Tensor:
    """That of causal-conv1d, which is CUDA alone."""
    assert activation == "silu"
    width = weight.shape[1]
    return F.silu(F.conv1d(F.pad(x, (width - 1, 0)), weight[:, None], bias, groups=x.shape[1]))


@pytest.mark.parametrize("architecture", ["mamba2", "gla"])
def test_a_bare_loop_gives_the_models_hidden_vectors(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "causal_conv1d", SimpleNamespace(causal_conv1d_fn=causal_conv1d_fn))
    model = random_model(architecture, torch.float32)
    naive = model_of(dims(architecture, "tiny"), seed=0, kernel="naive").double()
    naive.load_state_dict(model.state_dict())
    x = tokens(1, 9)
    with torch.no_grad():
        found, right = BARE[architecture](model)(x), naive(x)[0]
    assert relative_error(found, right) < 2e-5
