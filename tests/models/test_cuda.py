"""The model on a GPU: the same numbers as on a CPU, the same contract, bf16 as far as its digits go.

Fused kernels against the loop, of every architecture: outputs, carried states, gradients. Their products of fp32 are
TF32, 10 bits of a factor, hence the tolerances.
"""

from dataclasses import replace

import pytest
import torch

from models.interface import RecurrentLanguageModel, State
from models.kernels import CPU_KERNELS
from models.loss import cross_entropy_sum
from models.registry import ARCHITECTURES, build_model, dims, model_of
from models.settings import ModelSettings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
TOKENS = torch.randint(256, (4, 300), generator=torch.Generator().manual_seed(0))
FUSED_TOLERANCES = {torch.float32: 5e-3, torch.bfloat16: 0.05}
"""Norm of the difference over the norm of what is right."""


@pytest.fixture(autouse=True)
def full_fp32_products() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False


def outputs(device: str, kernel: str = "chunked", dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, State]:
    model = build_model(ModelSettings(kernel=kernel), 256, seed=0).to(device=device, dtype=dtype)
    with torch.no_grad():
        hidden, state = model(TOKENS.to(device))
        return model.head(hidden).float().cpu(), state


def assert_close(one: torch.Tensor, other: torch.Tensor, share: float) -> None:
    difference = (one.float().cpu() - other.float().cpu()).abs().max()
    assert difference <= share * other.abs().max().item(), f"{difference} of {other.abs().max()}"


@pytest.mark.parametrize("kernel", CPU_KERNELS)
def test_a_gpu_gives_what_a_cpu_gives(kernel: str) -> None:
    logits, state = outputs("cuda", kernel)
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


def fused_and_naive(architecture: str, dtype: torch.dtype) -> tuple[RecurrentLanguageModel, RecurrentLanguageModel]:
    """The same two layers at head sizes of published models, fused in `dtype` and as a loop in float64."""
    published = {"mamba1": "130m", "mamba2": "130m"}.get(architecture, "demo")
    size = replace(dims(architecture, published, 256), d_model=256, n_layer=2)
    fused = model_of(size, seed=0, kernel="fused").to("cuda", dtype)
    naive = model_of(size, seed=0, kernel="naive").to("cuda", torch.float64)
    naive.load_state_dict({name: value.double() for name, value in fused.state_dict().items()})
    return fused, naive


def random_state(model: RecurrentLanguageModel, rows: int) -> State:
    generator = torch.Generator("cuda").manual_seed(1)
    return [
        {
            name: (0.3 * torch.randn(part.shape, generator=generator, device="cuda")).to(part.dtype).requires_grad_()
            for name, part in layer.items()
        }
        for layer in model.zero_state(rows)
    ]


def in_pieces(
    model: RecurrentLanguageModel, tokens: torch.Tensor, start: State, cuts: list[int], segments: torch.Tensor | None
) -> tuple[torch.Tensor, State]:
    state, pieces = start, []
    for low, high in zip([0, *cuts], [*cuts, tokens.shape[1]], strict=True):
        hidden, state = model(tokens[:, low:high], state, None if segments is None else segments[:, low:high])
        pieces.append(hidden)
    return torch.cat(pieces, 1), state


def everything(
    model: RecurrentLanguageModel, start: State, cuts: list[int], segments: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """Hidden vectors, final states, gradients of the parameters and of the given state; the loss reads all of them."""
    tokens = TOKENS.cuda()
    hidden, final = in_pieces(model, tokens[:, :-1], start, cuts, segments)
    nll_sum, count = cross_entropy_sum(hidden, tokens[:, 1:], model)
    parts = {f"final {layer} {name}": part for layer, parts in enumerate(final) for name, part in parts.items()}
    (nll_sum / count + sum(part.double().square().mean() for part in parts.values())).backward()
    found = {"hidden": hidden, **parts}
    found |= {f"d {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    for layer, given in enumerate(start):
        found |= {f"d given {layer} {name}": part.grad for name, part in given.items() if part.grad is not None}
    return found


@pytest.mark.parametrize("dtype", FUSED_TOLERANCES, ids=str)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("case", ["whole", "cut", "packed"])
def test_fused_kernels_are_the_loop_with_states_and_gradients(architecture: str, dtype: torch.dtype, case: str) -> None:
    fused, naive = fused_and_naive(architecture, dtype)
    start = random_state(fused, 4)
    exact = [{name: part.detach().double().requires_grad_() for name, part in layer.items()} for layer in start]
    segments = None
    if case == "packed":
        segments = torch.zeros(4, 299, dtype=torch.int64, device="cuda")
        segments[0, 100:], segments[1] = 1, 1
    found = everything(fused, start, [101, 103] if case == "cut" else [], segments)
    right = everything(naive, exact, [], segments)
    assert found.keys() == right.keys()
    errors = {
        name: float((found[name].double() - right[name]).norm() / right[name].norm().clamp(min=1e-9)) for name in right
    }
    assert max(errors.values()) < FUSED_TOLERANCES[dtype], errors
    assert all(part.dtype == torch.float32 for name, part in found.items() if name.endswith("recurrent"))


def test_auto_runs_the_fused_kernels_where_trials_ask_for_gpus() -> None:
    model = build_model(ModelSettings(), 256, seed=0, device="cuda").cuda()
    with torch.no_grad():
        fused = model.head(model(TOKENS.cuda())[0]).float().cpu()
    assert_close(fused, outputs("cpu")[0], 5e-3)
