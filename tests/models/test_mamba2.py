"""The model's contract: a state that can be given, cut, carried and reset; names and values of the published model."""

from dataclasses import replace

import pytest
import torch

from models.interface import resets_from_segments
from models.mamba2.dims import SIZES
from models.mamba2.model import Mamba2LanguageModel
from tests.models.makers import TINY, random_state, relative_error, tiny_model, tokens


def test_a_first_segment_other_than_zero_drops_the_carried_state() -> None:
    model, x = tiny_model(), tokens(2, 8)
    dropped, _ = model(x, random_state(model, 2), torch.ones(2, 8, dtype=torch.int64))
    assert relative_error(dropped, model(x)[0]) <= 1e-12


def test_resets_stand_where_the_segment_changes() -> None:
    found = resets_from_segments(torch.tensor([[0, 0, 1, 1, 3], [2, 2, 2, 0, 0]]))
    assert found.int().tolist() == [[0, 0, 1, 0, 1], [1, 0, 0, 1, 0]]


def test_initial_values_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = Mamba2LanguageModel(TINY, seed=5).state_dict()
    torch.manual_seed(2)
    again, other = Mamba2LanguageModel(TINY, seed=5).state_dict(), Mamba2LanguageModel(TINY, seed=6).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["backbone.embedding.weight"], other["backbone.embedding.weight"])


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
    chunked, naive = tiny_model(ngroups=2), tiny_model(ngroups=2, scan="naive")
    assert relative_error(chunked(x)[0], naive(x)[0]) < 1e-12
