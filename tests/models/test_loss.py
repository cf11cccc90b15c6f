import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from models.loss import cross_entropy_sum, token_nll
from tests.models.makers import relative_error, tiny_model, tokens


def loss_inputs(rows: int = 3, length: int = 7, vocab: int = 11) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, length, 5, generator=generator, dtype=torch.float64).requires_grad_()
    weight = torch.randn(vocab, 5, generator=generator, dtype=torch.float64).requires_grad_()
    targets = torch.randint(vocab, (rows, length), generator=generator)
    targets[0, :3] = -100
    return hidden, targets, weight


@pytest.mark.parametrize("chunk_tokens", [1, 4, 21, 1000, None])
def test_equals_torch_with_gradients_at_any_chunk(chunk_tokens: int | None) -> None:
    hidden, targets, weight = loss_inputs()
    total, count = cross_entropy_sum(hidden, targets, weight, chunk_tokens=chunk_tokens)
    right = F.cross_entropy((hidden @ weight.T).flatten(0, 1), targets.flatten(), reduction="sum")
    torch.testing.assert_close(total, right)
    assert int(count) == 18
    for found, wanted in zip(
        torch.autograd.grad(total * 0.25, (hidden, weight)),
        torch.autograd.grad(right * 0.25, (hidden, weight)),
        strict=True,
    ):
        torch.testing.assert_close(found, wanted)


def test_token_nll_is_each_targets_loss_and_zero_where_ignored() -> None:
    hidden, targets, weight = loss_inputs()
    nll = token_nll(hidden, targets, weight, chunk_tokens=4)
    right = F.cross_entropy((hidden @ weight.T).flatten(0, 1), targets.flatten(), reduction="none")
    assert nll.dtype == torch.float32
    assert not nll.requires_grad
    torch.testing.assert_close(nll, right.detach().view(3, 7).float())
    assert torch.equal(nll[0, :3], torch.zeros(3))


def test_another_ignored_index_is_respected() -> None:
    hidden, targets, weight = loss_inputs()
    targets = targets.where(targets != -100, 4)
    _, count = cross_entropy_sum(hidden, targets, weight, ignore_index=4)
    assert int(count) == int((targets != 4).sum())


def test_nothing_to_predict_is_zero_with_zero_gradient() -> None:
    hidden, targets, weight = loss_inputs()
    total, count = cross_entropy_sum(hidden, torch.full_like(targets, -100), weight)
    total.backward()
    assert (total.item(), int(count)) == (0.0, 0)
    assert hidden.grad is not None
    assert float(hidden.grad.abs().max()) == 0


def test_sum_over_many_tokens_keeps_fp32_precision() -> None:
    hidden = torch.zeros(1, 300_000, 1)
    total, count = cross_entropy_sum(
        hidden, torch.zeros(1, 300_000, dtype=torch.int64), torch.zeros(3, 1), chunk_tokens=7001
    )
    assert float(total) / int(count) == pytest.approx(float(torch.log(torch.tensor(3.0))), rel=1e-7)


def test_huge_logits_stay_finite() -> None:
    hidden = torch.tensor([[[1e4], [-1e4]]], requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0]], requires_grad=True)
    total, _ = cross_entropy_sum(hidden, torch.tensor([[1, 1]]), weight)
    total.backward()
    assert total.item() == 2e4
    assert hidden.grad is not None
    assert bool(hidden.grad.isfinite().all())


def test_a_model_can_stand_for_its_head() -> None:
    model, x = tiny_model(), tokens(2, 9)
    hidden, _ = model(x[:, :-1])
    total, count = cross_entropy_sum(hidden, x[:, 1:], model)
    right = F.cross_entropy(model.head(hidden).flatten(0, 1), x[:, 1:].flatten(), reduction="sum")
    torch.testing.assert_close(total, right)
    (total / count).backward()
    gradient = model.backbone.embedding.weight.grad
    assert gradient is not None
    model.zero_grad()
    hidden, _ = model(x[:, :-1])
    F.cross_entropy(model.head(hidden).flatten(0, 1), x[:, 1:].flatten()).backward()
    right_gradient = model.backbone.embedding.weight.grad
    assert right_gradient is not None
    assert relative_error(gradient, right_gradient) < 1e-12


def test_bf16_hidden_vectors_give_an_fp32_loss() -> None:
    hidden, targets, weight = loss_inputs()
    total, _ = cross_entropy_sum(hidden.bfloat16(), targets, weight.bfloat16())
    assert total.dtype == torch.float32
    assert relative_error(total, cross_entropy_sum(hidden, targets, weight)[0]) < 0.02


def test_the_logits_of_all_positions_never_exist_at_once() -> None:
    hidden, weight = torch.randn(1, 64, 4, requires_grad=True), torch.randn(1000, 4, requires_grad=True)
    with torch.profiler.profile(profile_memory=True, record_shapes=True) as profile:
        cross_entropy_sum(hidden, torch.zeros(1, 64, dtype=torch.int64), weight, chunk_tokens=4)[0].backward()
    largest = max(event.self_cpu_memory_usage for event in profile.events())
    assert 0 < largest < 64 * 1000 * 4 / 4
