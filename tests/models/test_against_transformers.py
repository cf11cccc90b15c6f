"""An independent oracle: the Mambas of transformers compute the same from files that transformers wrote.

Files, configuration and parameters are theirs, written by their `save_pretrained`, read by our loader. Their path
without GPU kernels drops a given recurrent state of Mamba-1 for more than one token, so cuts are not compared here.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from transformers import Mamba2Config, Mamba2ForCausalLM, MambaConfig, MambaForCausalLM, PreTrainedModel

from models.checkpoints import load_checkpoint
from models.content import check_checkpoint
from models.interface import RecurrentLanguageModel
from models.loss import cross_entropy_sum
from tests.models.makers import relative_error, tokens

VOCABULARY = 24
LOGITS_TOLERANCE, GRADIENT_TOLERANCE = 1e-5, 1e-4


def theirs(architecture: str) -> PreTrainedModel:
    """A small model of transformers in which every parameter matters."""
    torch.manual_seed(0)
    shared: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2}
    shared["tie_word_embeddings"] = True
    model: PreTrainedModel
    if architecture == "mamba1":
        model = MambaForCausalLM(MambaConfig(**shared, state_size=5, time_step_rank=3))
    else:
        config = Mamba2Config(**shared, state_size=8, num_heads=8, head_dim=4, n_groups=2, chunk_size=16)
        model = Mamba2ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.2)
    return model


@pytest.fixture(params=["mamba1", "mamba2"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[RecurrentLanguageModel, PreTrainedModel]:
    twin = theirs(request.param)
    twin.save_pretrained(tmp_path)
    ours = load_checkpoint(tmp_path)
    assert request.param == ours.dims.ARCHITECTURE
    check_checkpoint(tmp_path, ours.dims)
    return ours, twin


def test_logits_equal_those_of_transformers(pair: tuple[RecurrentLanguageModel, PreTrainedModel]) -> None:
    model, twin = pair
    for length in (1, 7, 50):
        x = tokens(2, length, vocab_size=VOCABULARY)
        with torch.no_grad():
            assert relative_error(model.head(model(x)[0]), twin(x).logits) < LOGITS_TOLERANCE


def test_gradients_equal_those_of_transformers(pair: tuple[RecurrentLanguageModel, PreTrainedModel]) -> None:
    model, twin = pair
    x = tokens(2, 51, vocab_size=VOCABULARY)
    total, count = cross_entropy_sum(model(x[:, :-1])[0], x[:, 1:], model)
    (total / count).backward()
    F.cross_entropy(twin(x[:, :-1]).logits.flatten(0, 1), x[:, 1:].flatten()).backward()
    right = {name.replace("embeddings.", "embedding."): p.grad for name, p in twin.named_parameters()}
    assert right.keys() == dict(model.named_parameters()).keys()
    for name, parameter in model.named_parameters():
        found, wanted = parameter.grad, right[name]
        assert found is not None, name
        assert wanted is not None, name
        assert relative_error(found, wanted) < GRADIENT_TOLERANCE, name
