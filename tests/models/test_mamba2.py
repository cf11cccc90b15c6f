"""What Mamba-2 alone has: its initial values, padded vocabulary, tied head and groups of heads."""

from dataclasses import replace

import pytest
import torch

from models.interface import resets_from_segments
from models.mamba2.dims import SIZES
from models.mamba2.model import Mamba2LanguageModel
from tests.models.makers import TINY, relative_error, tiny_model, tokens


def test_resets_stand_where_the_segment_changes() -> None:
    found = resets_from_segments(torch.tensor([[0, 0, 1, 1, 3], [2, 2, 2, 0, 0]]))
    assert found.int().tolist() == [[0, 0, 1, 0, 1], [1, 0, 0, 1, 0]]


def test_initial_ranges_are_the_published_ones() -> None:
    model = Mamba2LanguageModel(replace(SIZES["130m"], n_layer=2, vocab_size=64), seed=0)
    for name, value in model.state_dict().items():
        if name.endswith("A_log"):
            assert 1 <= float(value.exp().min()) < 4 < 12 < float(value.exp().max()) <= 16
        if name.endswith("dt_bias"):
            step = torch.nn.functional.softplus(value)
            assert 0.9e-3 <= float(step.min()) < 5e-3 < 5e-2 < float(step.max()) <= 0.11
        if name.endswith("mixer.D") or name.endswith("norm.weight"):
            assert torch.equal(value, torch.ones_like(value))
        if name.endswith("out_proj.weight"):
            assert float(value.abs().max()) == pytest.approx((1536 * 2) ** -0.5, rel=1e-3)
    assert model.backbone.embedding.weight.std().item() == pytest.approx(0.02, rel=0.05)


def test_weight_decay_spares_scalars_norms_and_biases() -> None:
    model = tiny_model()
    decayed = {name.rpartition("mixer.")[2] for name, _ in model.named_parameters()} - {
        name.rpartition("mixer.")[2] for name in model.no_decay_parameters()
    }
    assert decayed == {"backbone.embedding.weight", "in_proj.weight", "conv1d.weight", "out_proj.weight"}


def test_padding_of_the_vocabulary_takes_no_probability() -> None:
    model = tiny_model()
    assert model.backbone.embedding.weight.shape[0] == 32
    hidden, _ = model(tokens(1, 4))
    logits = model.head(hidden)
    assert logits.shape == (1, 4, TINY.vocab_size)
    with torch.no_grad():
        model.backbone.embedding.weight[TINY.vocab_size :] = 1e3
    assert torch.equal(model.head(hidden), logits)


def test_head_is_tied_to_the_embedding() -> None:
    model = tiny_model()
    assert model.lm_head.weight is model.backbone.embedding.weight
    assert "lm_head.weight" not in dict(model.named_parameters())


def test_groups_of_heads_share_input_and_output_vectors() -> None:
    x = tokens(2, 30)
    chunked, naive = tiny_model(ngroups=2), tiny_model(ngroups=2, kernel="naive")
    assert relative_error(chunked(x)[0], naive(x)[0]) < 1e-12
