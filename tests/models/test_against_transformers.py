"""An independent oracle: the Mamba-2 of transformers computes the same logits and gradients from the same weights."""

import torch
from torch.nn import functional as F

from benchmarks.training_speed import transformers_twin
from models.loss import cross_entropy_sum
from tests.models.makers import TINY, relative_error, tiny_model, tokens


def test_logits_equal_those_of_transformers() -> None:
    model, x = tiny_model(torch.float32), tokens(2, 50)
    twin = transformers_twin(model, chunk=16)
    with torch.no_grad():
        found, right = model.head(model(x)[0]), twin(x).logits[..., : TINY.vocab_size]
    assert relative_error(found, right) < 1e-5


def test_gradients_equal_those_of_transformers() -> None:
    model, x = tiny_model(torch.float32), tokens(2, 51)
    twin = transformers_twin(model, chunk=16)
    total, count = cross_entropy_sum(model(x[:, :-1])[0], x[:, 1:], model)
    (total / count).backward()
    logits = twin(x[:, :-1]).logits[..., : TINY.vocab_size]
    F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten()).backward()
    right = {name.replace("embeddings.", "embedding."): p.grad for name, p in twin.named_parameters()}
    for name, parameter in model.named_parameters():
        found, wanted = parameter.grad, right[name]
        assert found is not None, name
        assert wanted is not None, name
        assert relative_error(found, wanted) < 1e-4, name
