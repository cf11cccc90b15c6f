"""The model on a GPU: the same numbers as on a CPU, the same contract, bf16 as far as its digits go."""

import pytest
import torch

from models.interface import State
from models.loss import cross_entropy_sum
from models.registry import build_model
from models.settings import ModelSettings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
TOKENS = torch.randint(256, (4, 300), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def full_fp32_products() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False


def outputs(device: str, scan: str = "chunked", dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, State]:
    model = build_model(ModelSettings(scan=scan), 256, seed=0).to(device=device, dtype=dtype)
    with torch.no_grad():
        hidden, state = model(TOKENS.to(device))
        return model.head(hidden).float().cpu(), state


def assert_close(one: torch.Tensor, other: torch.Tensor, share: float) -> None:
    difference = (one.float().cpu() - other.float().cpu()).abs().max()
    assert difference <= share * other.abs().max().item(), f"{difference} of {other.abs().max()}"


@pytest.mark.parametrize("scan", ["naive", "chunked"])
def test_a_gpu_gives_what_a_cpu_gives(scan: str) -> None:
    logits, state = outputs("cuda", scan)
    expected, expected_state = outputs("cpu")
    assert_close(logits, expected, 1e-4)
    for layer, expected_layer in zip(state, expected_state, strict=True):
        assert_close(layer["recurrent"], expected_layer["recurrent"], 1e-4)


def test_cutting_anywhere_and_carrying_the_state_gives_one_pass() -> None:
    model = build_model(ModelSettings(), 256, seed=0).cuda()
    tokens = TOKENS.cuda()
    with torch.no_grad():
        whole, final = model(tokens)
        first, state = model(tokens[:, :101])
        middle, state = model(tokens[:, 101:103], state)
        last, state = model(tokens[:, 103:], state)
    assert_close(torch.cat([first, middle, last], 1), whole, 1e-5)
    assert_close(state[1]["recurrent"], final[1]["recurrent"], 1e-5)


def test_bf16_keeps_its_state_in_fp32_and_its_digits() -> None:
    logits, state = outputs("cuda", dtype=torch.bfloat16)
    expected, _ = outputs("cpu")
    assert state[0]["recurrent"].dtype == torch.float32
    assert_close(logits, expected, 0.05)


def test_gradients_are_those_of_a_cpu() -> None:
    gradients = []
    for device in ("cpu", "cuda"):
        model = build_model(ModelSettings(), 256, seed=0).to(device)
        tokens = TOKENS.to(device)
        state = [{name: part + 0.1 for name, part in layer.items()} for layer in model.zero_state(4)]
        hidden, _ = model(tokens[:, :-1], state)
        nll_sum, _ = cross_entropy_sum(hidden, tokens[:, 1:], model)
        nll_sum.backward()
        gradients.append({name: p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        assert_close(gradients[1][name], gradient, 1e-3)


def test_a_few_steps_lower_the_loss() -> None:
    model = build_model(ModelSettings(), 256, seed=0).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    tokens, losses = TOKENS.cuda(), []
    for _ in range(10):
        hidden, _ = model(tokens[:, :-1])
        nll_sum, count = cross_entropy_sum(hidden, tokens[:, 1:], model)
        loss = nll_sum / count
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.3
