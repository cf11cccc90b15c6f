"""Activation checkpointing: layers that the backward pass computes again give the same results and gradients."""

import pytest
import torch
from torch import Tensor

from models.interface import RecurrentLanguageModel, State
from models.loss import cross_entropy_sum
from models.registry import ARCHITECTURES
from tests.models.makers import random_model, random_state, tokens

ROWS, LENGTH = 3, 21


def results_and_gradients(
    model: RecurrentLanguageModel, state: State | None, segment_ids: Tensor | None, recompute: bool
) -> list[Tensor]:
    """Loss, final states, and the gradients of weights and initial states; the loss meets the final states too."""
    model.recompute = recompute
    model.zero_grad()
    leaves = [] if state is None else [part.requires_grad_() for layer in state for part in layer.values()]
    for leaf in leaves:
        leaf.grad = None
    texts = tokens(ROWS, LENGTH + 1)
    hidden, final = model(texts[:, :-1], state, segment_ids)
    nll_sum, _ = cross_entropy_sum(hidden, texts[:, 1:], model)
    parts = [part for layer in final for part in layer.values()]
    (nll_sum + sum(part.square().sum() for part in parts)).backward()
    gradients = [value.grad for value in (*model.parameters(), *leaves)]
    assert all(gradient is not None for gradient in gradients)
    return [nll_sum, *parts, *(gradient for gradient in gradients if gradient is not None)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("segmented", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_recomputed_layers_give_the_same_gradients_bit_for_bit(
    architecture: str, segmented: bool, dtype: torch.dtype
) -> None:
    model = random_model(architecture, torch.float32).in_precision(dtype)
    segment_ids = torch.arange(LENGTH).div(8, rounding_mode="floor").expand(ROWS, LENGTH) if segmented else None
    kept, again = (
        [value.detach().clone() for value in results_and_gradients(model, state, segment_ids, recompute)]
        for recompute, state in ((False, random_state(model, ROWS)), (True, random_state(model, ROWS)))
    )
    for index, (one, other) in enumerate(zip(kept, again, strict=True)):
        assert torch.equal(one, other), index
    # What is compared is not nothing: the initial states have gradients, the recurrent ones everywhere.
    assert any(float(value.abs().max()) > 0 for value in kept[-len(model.zero_state(1)) :])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_recomputed_layers_keep_less(architecture: str) -> None:
    model = random_model(architecture, torch.float32)

    def kept_bytes(recompute: bool) -> int:
        seen: dict[int, int] = {}

        def see(value: Tensor) -> Tensor:
            storage = value.untyped_storage()
            seen[storage.data_ptr()] = storage.nbytes()
            alive.append(value)
            return value

        model.recompute = recompute
        alive: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(see, lambda value: value):
            model(tokens(ROWS, 64))
        return sum(seen.values())

    weights = sum(parameter.untyped_storage().nbytes() for parameter in model.parameters())
    assert kept_bytes(True) - weights < (kept_bytes(False) - weights) / 3


def test_nothing_is_recomputed_where_no_gradient_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model("mamba2", torch.float32)
    model.recompute = True
    monkeypatch.setattr("models.interface.checkpoint", None)
    with torch.no_grad():
        model(tokens(1, 5))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_model_in_bf16_keeps_what_its_decays_are_made_of(architecture: str) -> None:
    model = random_model(architecture, torch.float32)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.in_precision(torch.bfloat16)
    kept = model.fp32_parameters()
    assert (len(kept) > 0) == architecture.startswith("mamba")
    assert sum(model.get_parameter(name).numel() for name in kept) == model.dims.fp32_parameters()
    for name, value in model.named_parameters():
        assert value.dtype == (torch.float32 if name in kept else torch.bfloat16)
        assert name not in kept or torch.equal(value, before[name])
