"""The contract of every architecture (RecurrentLanguageModel): a state that can be given, cut, carried and reset."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.interface import LayerState, RecurrentLanguageModel, State, resets_from_segments
from models.kernels import CPU_KERNELS
from models.registry import ARCHITECTURES, build_model, dims
from models.settings import ModelSettings
from tests.models import page_example
from tests.models.makers import assert_states_close, random_model, random_state, relative_error, tokens

FP32_TOLERANCE, FP64_TOLERANCE = 1e-5, 1e-10
BF16_TOLERANCE = 0.05
"""Norm of the difference of a tiny model's hidden vectors over their norm: mamba1, rwkv6 0.006, mamba2 0.01, gla 0.04,
whose norm over each head's few outputs magnifies what is small."""


@pytest.fixture(params=[*ARCHITECTURES, page_example.NAME])
def architecture(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == page_example.NAME:
        page_example.add_page_example(monkeypatch)
    return str(request.param)


@pytest.fixture(params=CPU_KERNELS)
def model(architecture: str, request: pytest.FixtureRequest) -> RecurrentLanguageModel:
    return random_model(architecture, kernel=str(request.param))


def run_in_pieces(
    model: RecurrentLanguageModel, x: Tensor, start: State | None, cuts: list[int]
) -> tuple[Tensor, State]:
    state, pieces = start, []
    for low, high in zip([0, *cuts], [*cuts, x.shape[1]], strict=True):
        hidden, state = model(x[:, low:high], state)
        pieces.append(hidden)
    assert state is not None
    return torch.cat(pieces, 1), state


# The model is not changed, so that examples may share it.
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.sets(st.integers(1, 39), min_size=1, max_size=6))
def test_cutting_anywhere_and_carrying_equals_one_pass(model: RecurrentLanguageModel, cuts: set[int]) -> None:
    x, start = tokens(2, 40), random_state(model, 2)
    with torch.no_grad():
        whole, final = model(x, start)
        pieces, end = run_in_pieces(model, x, start, sorted(cuts))
    assert relative_error(pieces, whole) <= FP64_TOLERANCE
    assert_states_close(end, final, FP64_TOLERANCE)


def test_position_by_position_equals_one_pass(model: RecurrentLanguageModel) -> None:
    x = tokens(2, 20)
    with torch.no_grad():
        whole, final = model(x)
        pieces, end = run_in_pieces(model, x, None, list(range(1, 20)))
    assert relative_error(pieces, whole) <= FP64_TOLERANCE
    assert_states_close(end, final, FP64_TOLERANCE)


# 1, the last tap of a convolution, within and at the edges of a block, twice.
@pytest.mark.parametrize("cuts", [[1], [3], [63], [64], [200], [511], [100, 300]], ids=str)
def test_carrying_holds_in_fp32_up_to_512_tokens(architecture: str, cuts: list[int]) -> None:
    model = build_model(ModelSettings(architecture=architecture, size="demo"), vocab_size=256, seed=0)
    stir(model)
    x = tokens(1, 512, vocab_size=256)
    with torch.no_grad():
        whole, final = model(x)
        pieces, end = run_in_pieces(model, x, None, cuts)
    assert relative_error(pieces, whole) <= FP32_TOLERANCE
    assert_states_close(end, final, FP32_TOLERANCE)


def stir(model: RecurrentLanguageModel) -> None:
    """Move parameters off the zeros that some start at."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.02)


def test_no_state_is_the_zero_state(model: RecurrentLanguageModel) -> None:
    x = tokens(2, 20)
    (hidden, final), (hidden_zero, final_zero) = model(x), model(x, model.zero_state(2))
    assert relative_error(hidden, hidden_zero) <= 1e-14
    assert_states_close(final, final_zero, 1e-14)


def test_chunked_and_naive_models_agree_with_their_gradients(architecture: str) -> None:
    x = tokens(3, 50)
    results = []
    for kernel in CPU_KERNELS:
        model = random_model(architecture, kernel=kernel)
        hidden, final = model(x, random_state(model, 3))
        (model.head(hidden).square().sum() + final[1]["recurrent"].square().sum()).backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        assert all(gradient is not None for gradient in gradients.values())
        results.append({"hidden": hidden, **gradients})
    for name in results[0]:
        found, right = results[0][name], results[1][name]
        assert found is not None
        assert right is not None
        assert bool((right != 0).any()), name
        assert relative_error(found, right) < 1e-9, name


def test_every_part_of_the_state_reaches_the_first_output(model: RecurrentLanguageModel) -> None:
    x = tokens(2, 5)
    with torch.no_grad():
        plain, _ = model(x, model.zero_state(2))
        for layer, parts in enumerate(model.state_spec()):
            for part in parts:
                state = model.zero_state(2)
                state[layer][part] = random_state(model, 2)[layer][part]
                changed, _ = model(x, state)
                assert float((changed - plain)[:, 0].abs().max()) > 1e-5, part


def test_gradients_pass_gradcheck_through_the_given_and_the_final_state(architecture: str) -> None:
    model, x = random_model(architecture), tokens(1, 5)
    given = random_state(model, 1)
    names = [(layer, part) for layer, parts in enumerate(given) for part in parts]

    def run(*parts: Tensor) -> tuple[Tensor, ...]:
        state: State = [{} for _ in given]
        for (layer, name), part in zip(names, parts, strict=True):
            state[layer][name] = part
        hidden, final = model(x, state)
        return (hidden, *(final[layer][name] for layer, name in names))

    leaves = [given[layer][name].requires_grad_() for layer, name in names]
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    assert torch.autograd.gradcheck(run, leaves, nondet_tol=0.0, fast_mode=True)


def test_final_state_of_the_first_layer_is_affine_in_the_given_one(model: RecurrentLanguageModel) -> None:
    x, one, other = tokens(2, 30), random_state(model, 2, seed=1), random_state(model, 2, seed=2)

    def final(weight: float) -> Tensor:
        mixed = model.zero_state(2)
        mixed[0]["recurrent"] = weight * one[0]["recurrent"] + (1 - weight) * other[0]["recurrent"]
        return model(x, mixed)[1][0]["recurrent"]

    with torch.no_grad():
        assert relative_error(final(3.0), 3 * final(1.0) - 2 * final(0.0)) <= FP64_TOLERANCE


def test_a_token_moves_nothing_before_it(model: RecurrentLanguageModel) -> None:
    x = tokens(2, 40)
    for position in (0, 1, 17, 39):
        changed = x.clone()
        changed[:, position] = (changed[:, position] + 1) % 19
        with torch.no_grad():
            before, after = model(x)[0], model(changed)[0]
        # Earlier positions may share a matrix product with the changed one, whose rounding is all that may differ.
        assert relative_error(after[:, :position], before[:, :position]) <= 1e-13 if position else True
        assert relative_error(after[:, position:], before[:, position:]) > 1e-3


def test_rows_do_not_see_each_other(model: RecurrentLanguageModel) -> None:
    x, start = tokens(3, 30), random_state(model, 3)
    with torch.no_grad():
        together, final = model(x, start)
        for row in range(3):
            own: State = [{name: part[row : row + 1] for name, part in layer.items()} for layer in start]
            alone, end = model(x[row : row + 1], own)
            assert relative_error(together[row : row + 1], alone) <= FP64_TOLERANCE
            for layer, last in zip(final, end, strict=True):
                for name in last:
                    assert relative_error(layer[name][row : row + 1], last[name]) <= FP64_TOLERANCE


def segments_of(*lengths: int) -> Tensor:
    return torch.cat([torch.full((length,), number) for number, length in enumerate(lengths)])[None]


def test_packed_segments_equal_each_segment_alone(model: RecurrentLanguageModel) -> None:
    x, start = tokens(1, 30), random_state(model, 1)
    hidden, final = model(x, start, segments_of(9, 1, 20))
    first, _ = model(x[:, :9], start)
    second, _ = model(x[:, 9:10])
    third, end = model(x[:, 10:])
    assert relative_error(hidden, torch.cat([first, second, third], 1)) <= FP64_TOLERANCE
    assert_states_close(final, end, FP64_TOLERANCE)


def test_changing_a_document_moves_nothing_of_the_next(model: RecurrentLanguageModel) -> None:
    segments, x = segments_of(14, 26), tokens(1, 40)
    changed = x.clone()
    changed[:, :14] = tokens(1, 14, seed=9)
    with torch.no_grad():
        hidden, final = model(x, random_state(model, 1), segments)
        moved, end = model(changed, random_state(model, 1, seed=5), segments)
    assert relative_error(moved[:, :14], hidden[:, :14]) > 1e-3
    assert relative_error(moved[:, 14:], hidden[:, 14:]) <= 1e-13
    assert_states_close(end, final, 1e-13)


def test_cutting_a_packed_row_and_renumbering_equals_one_pass(model: RecurrentLanguageModel) -> None:
    x, segments = tokens(1, 30), segments_of(9, 6, 15)
    whole, final = model(x, None, segments)
    for cut in (1, 9, 10, 12, 15):
        head, state = model(x[:, :cut], None, segments[:, :cut])
        tail, end = model(x[:, cut:], state, segments[:, cut:] - segments[0, cut - 1])
        assert relative_error(torch.cat([head, tail], 1), whole) <= FP64_TOLERANCE
        assert_states_close(end, final, FP64_TOLERANCE)


def test_a_row_that_starts_with_a_new_segment_drops_the_given_state(model: RecurrentLanguageModel) -> None:
    x = tokens(1, 10)
    fresh, end = model(x)
    dropped, final = model(x, random_state(model, 1), torch.ones(1, 10, dtype=torch.int64))
    assert bool(resets_from_segments(torch.ones(1, 10, dtype=torch.int64))[0, 0])
    assert relative_error(dropped, fresh) <= FP64_TOLERANCE
    assert_states_close(final, end, FP64_TOLERANCE)


def test_bf16_keeps_its_recurrent_state_in_fp32_and_stays_near_fp32(architecture: str) -> None:
    x = tokens(2, 40)
    hidden = random_model(architecture, torch.float32)(x)[0].detach()
    low = random_model(architecture, torch.bfloat16)
    low_hidden, final = low(x, random_state(low, 2))
    assert low_hidden.dtype == torch.bfloat16
    for layer, spec in zip(final, low.state_spec(), strict=True):
        assert {name: part.dtype for name, part in layer.items()} == {name: part.dtype for name, part in spec.items()}
        assert layer["recurrent"].dtype == torch.float32
    assert float((low(x)[0].detach() - hidden).norm() / hidden.norm()) < BF16_TOLERANCE
    low.head(low_hidden).float().square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in low.parameters())


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """Memory that torch.empty hands out is full of NaN."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    yield
    torch.use_deterministic_algorithms(False)


def gradients(model: RecurrentLanguageModel, x: Tensor, state: list[LayerState]) -> list[Tensor]:
    model.zero_grad()
    hidden, final = model(x, state)
    (hidden.square().sum() + sum(part.square().sum() for layer in final for part in layer.values())).backward()
    return [hidden.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def test_nothing_reads_memory_that_nobody_wrote(architecture: str, request: pytest.FixtureRequest) -> None:
    model, x = random_model(architecture), tokens(3, 37)
    state, segments = random_state(model, 3), torch.tensor([[0] * 20 + [1] * 17] * 3)
    clean, packed = gradients(model, x, state), model(x, state, segments)[0]
    request.getfixturevalue("poisoned_memory")
    assert bool(torch.empty(3).isnan().all())
    for found, right in zip(gradients(model, x, state), clean, strict=True):
        assert torch.equal(found, right)
    assert torch.equal(model(x, state, segments)[0], packed)


def test_state_spec_matches_the_states_and_the_count_without_torch(model: RecurrentLanguageModel) -> None:
    _, final = model(tokens(2, 3))
    for layer, spec in zip(final, model.state_spec(), strict=True):
        assert {name: part.shape[1:] for name, part in layer.items()} == {n: s.shape for n, s in spec.items()}
        assert {name: part.dtype for name, part in layer.items()} == {name: part.dtype for name, part in spec.items()}
    counted: dict[str, int] = {}
    for layer in final:
        for name, part in layer.items():
            counted[name] = counted.get(name, 0) + part[0].numel()
    assert counted == model.dims.state_elements()


def test_initial_values_depend_on_the_seed_alone(architecture: str) -> None:
    settings = ModelSettings(architecture=architecture, size="tiny")
    torch.manual_seed(1)
    first = build_model(settings, 19, seed=5).state_dict()
    torch.manual_seed(2)
    again, other = build_model(settings, 19, seed=5).state_dict(), build_model(settings, 19, seed=6).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    embedding = dims(architecture, "tiny").EMBEDDING
    assert not torch.equal(first[embedding], other[embedding])


@pytest.mark.slow
def test_64k_tokens_in_pieces_are_as_near_float64_as_one_pass(architecture: str) -> None:
    x = tokens(1, 2**16)
    with torch.no_grad():
        right, end = random_model(architecture, kernel="naive")(x)
        model = random_model(architecture, torch.float32)
        whole, final = model(x)
        for piece in (1000, 8192):
            found, last = run_in_pieces(model, x, None, list(range(piece, 2**16, piece)))
            assert relative_error(found, right) <= 3 * relative_error(whole, right)
            for layer in range(len(end)):
                error = relative_error(last[layer]["recurrent"], end[layer]["recurrent"])
                assert error <= 3 * max(relative_error(final[layer]["recurrent"], end[layer]["recurrent"]), 1e-7)
