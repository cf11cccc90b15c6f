"""The model's contract: a state that can be given, cut, carried and reset; names and values of the published model."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.interface import State, resets_from_segments
from models.mamba2 import Mamba2LanguageModel
from models.registry import build_model
from models.settings import ModelSettings
from models.sizes import dims
from tests.models.makers import TINY, random_state, relative_error, tiny_model, tokens


def assert_states_close(found: State, right: State, tolerance: float) -> None:
    for found_layer, right_layer in zip(found, right, strict=True):
        assert found_layer.keys() == right_layer.keys()
        for part in right_layer:
            assert relative_error(found_layer[part], right_layer[part]) <= tolerance, part


@pytest.mark.parametrize("scan", ["chunked", "naive"])
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_cutting_anywhere_and_carrying_equals_one_pass(scan: str, data: st.DataObject) -> None:
    model, x = tiny_model(scan=scan), tokens(2, 40)
    start = random_state(model, 2)
    cuts = sorted(data.draw(st.sets(st.integers(1, 39), min_size=1, max_size=6)))
    with torch.no_grad():
        whole, final = model(x, start)
        state, pieces = start, []
        for low, high in zip([0, *cuts], [*cuts, 40], strict=True):
            hidden, state = model(x[:, low:high], state)
            pieces.append(hidden)
    assert relative_error(torch.cat(pieces, 1), whole) <= 1e-10
    assert_states_close(state, final, 1e-10)


def test_position_by_position_equals_one_pass() -> None:
    model, x = tiny_model(), tokens(2, 20)
    with torch.no_grad():
        whole, final = model(x)
        state: State | None = None
        pieces = []
        for position in range(20):
            hidden, state = model(x[:, position : position + 1], state)
            pieces.append(hidden)
    assert state is not None
    assert relative_error(torch.cat(pieces, 1), whole) <= 1e-10
    assert_states_close(state, final, 1e-10)


@pytest.mark.parametrize("cut", [1, 2, 63, 64, 200, 511])
def test_carrying_holds_in_fp32_up_to_512_tokens(cut: int) -> None:
    model = build_model(ModelSettings(size="demo"), vocab_size=256, seed=0)
    x = tokens(1, 512, vocab_size=256)
    with torch.no_grad():
        whole, final = model(x)
        head, state = model(x[:, :cut])
        tail, end = model(x[:, cut:], state)
    assert relative_error(torch.cat([head, tail], 1), whole) <= 1e-5
    assert_states_close(end, final, 1e-5)


def test_no_state_is_the_zero_state() -> None:
    model, x = tiny_model(), tokens(2, 20)
    (hidden, final), (hidden_zero, final_zero) = model(x), model(x, model.zero_state(2))
    assert relative_error(hidden, hidden_zero) <= 1e-15
    assert_states_close(final, final_zero, 1e-15)


def test_chunked_and_naive_models_agree_with_their_gradients() -> None:
    x = tokens(3, 50)
    results = []
    for scan in ("chunked", "naive"):
        model = tiny_model(scan=scan)
        hidden, final = model(x, random_state(model, 3))
        (hidden.square().sum() + final[1]["recurrent"].square().sum()).backward()
        results.append([hidden, *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)])
    assert len(results[0]) == 1 + len(list(tiny_model().parameters()))
    for found, right in zip(*results, strict=True):
        assert relative_error(found, right) < 1e-9


def test_both_parts_of_the_state_reach_the_outputs_of_the_first_positions() -> None:
    model, x = tiny_model(), tokens(2, 5)
    with torch.no_grad():
        plain, _ = model(x, model.zero_state(2))
        for part in ("recurrent", "conv"):
            state = model.zero_state(2)
            state[0][part] = random_state(model, 2)[0][part]
            changed, _ = model(x, state)
            assert float((changed - plain)[:, 0].abs().max()) > 1e-4, part


def test_gradients_flow_through_every_part_of_a_given_state() -> None:
    model, x = tiny_model(), tokens(2, 5)
    state = [{name: part.requires_grad_() for name, part in layer.items()} for layer in random_state(model, 2)]
    hidden, _ = model(x, state)
    hidden.square().sum().backward()
    for layer in state:
        for name, part in layer.items():
            assert part.grad is not None, name
            assert float(part.grad.abs().max()) > 0, name


def segments_of(*lengths: int) -> Tensor:
    return torch.cat([torch.full((length,), number) for number, length in enumerate(lengths)])[None]


def test_packed_segments_equal_each_segment_alone() -> None:
    model, x = tiny_model(), tokens(1, 30)
    start = random_state(model, 1)
    hidden, final = model(x, start, segments_of(9, 1, 20))
    first, _ = model(x[:, :9], start)
    second, _ = model(x[:, 9:10])
    third, end = model(x[:, 10:])
    assert relative_error(hidden, torch.cat([first, second, third], 1)) <= 1e-10
    assert_states_close(final, end, 1e-10)


def test_cutting_a_packed_row_and_renumbering_equals_one_pass() -> None:
    model, x, segments = tiny_model(), tokens(1, 30), segments_of(9, 6, 15)
    whole, final = model(x, None, segments)
    for cut in (1, 9, 10, 12, 15):
        head, state = model(x[:, :cut], None, segments[:, :cut])
        tail, end = model(x[:, cut:], state, segments[:, cut:] - segments[:, cut - 1])
        assert relative_error(torch.cat([head, tail], 1), whole) <= 1e-10
        assert_states_close(end, final, 1e-10)


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
    model = Mamba2LanguageModel(replace(dims("mamba2", "130m"), n_layer=2, vocab_size=64), seed=0)
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


def test_bf16_model_keeps_its_recurrent_state_in_fp32_and_near_the_fp32_model() -> None:
    x = tokens(2, 40)
    model = tiny_model(torch.float32)
    hidden, final = model(x)
    low = tiny_model(torch.bfloat16)
    low_hidden, low_final = low(x)
    assert low_hidden.dtype == torch.bfloat16
    assert {name: part.dtype for name, part in low_final[0].items()} == {
        "recurrent": torch.float32,
        "conv": torch.bfloat16,
    }
    assert low_final[0]["recurrent"].dtype == low.state_spec()[0]["recurrent"].dtype
    assert relative_error(low_hidden, hidden) < 0.05
    low_hidden.float().square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in low.parameters())


def test_state_spec_matches_the_states_and_the_count_without_torch() -> None:
    model = tiny_model()
    _, final = model(tokens(2, 3))
    for layer, spec in zip(final, model.state_spec(), strict=True):
        assert {name: part.shape[1:] for name, part in layer.items()} == {n: s.shape for n, s in spec.items()}
        assert {name: part.dtype for name, part in layer.items()} == {name: part.dtype for name, part in spec.items()}
    counted = {name: sum(layer[name][0].numel() for layer in final) for name in final[0]}
    assert counted == TINY.state_elements()
    heads = model.state_spec()[0]["recurrent"]
    assert heads.head_axis is not None
    assert heads.shape[heads.head_axis] == TINY.n_heads


def test_groups_of_heads_share_input_and_output_vectors() -> None:
    x = tokens(2, 30)
    chunked, naive = tiny_model(ngroups=2), tiny_model(ngroups=2, scan="naive")
    assert relative_error(chunked(x)[0], naive(x)[0]) < 1e-12
