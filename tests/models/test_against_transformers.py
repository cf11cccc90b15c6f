"""An independent oracle: the Mamba-2 of transformers computes the same logits and gradients from the same weights."""

import torch
from torch.nn import functional as F
from transformers import Mamba2Config, Mamba2ForCausalLM

from models.loss import cross_entropy_sum
from models.mamba2 import Mamba2LanguageModel
from models.sizes import Mamba2Dims
from tests.models.makers import TINY, relative_error, tiny_model, tokens


def transformers_twin(model: Mamba2LanguageModel, dims: Mamba2Dims, chunk: int) -> Mamba2ForCausalLM:
    config = Mamba2Config(
        num_heads=dims.n_heads,
        head_dim=dims.headdim,
        vocab_size=dims.vocab_rows,
        hidden_size=dims.d_model,
        state_size=dims.d_state,
        num_hidden_layers=dims.n_layer,
        layer_norm_epsilon=dims.norm_eps,
        expand=dims.expand,
        conv_kernel=dims.d_conv,
        n_groups=dims.ngroups,
        chunk_size=chunk,
        tie_word_embeddings=True,
        use_cache=False,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
    )
    twin = Mamba2ForCausalLM(config)
    twin.load_state_dict({n.replace("embedding.", "embeddings."): v for n, v in model.state_dict().items()})
    return twin.train()


def test_logits_equal_those_of_transformers() -> None:
    model, x = tiny_model(torch.float32), tokens(2, 50)
    twin = transformers_twin(model, TINY, chunk=16)
    with torch.no_grad():
        found, right = model.head(model(x)[0]), twin(x).logits[..., : TINY.vocab_size]
    assert relative_error(found, right) < 1e-5


def test_gradients_equal_those_of_transformers() -> None:
    model, x = tiny_model(torch.float32), tokens(2, 51)
    twin = transformers_twin(model, TINY, chunk=16)
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
