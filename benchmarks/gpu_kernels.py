"""The fused path of every architecture against the loop over time in float64, on a GPU: for benchmarks/gpu_check.py.

Whole models are compared, not single kernels: what a trial computes is outputs, final state and gradients of all of it.
"""

from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.markdown import table
from models.architecture import ModelDims
from models.interface import RecurrentLanguageModel, State
from models.loss import cross_entropy_sum
from models.registry import ARCHITECTURES, dims, model_of

LENGTHS = (7, 64, 200, 300)
ROWS = 3
VOCABULARY = 256
TOLERANCES = {torch.float32: 5e-3, torch.bfloat16: 0.05}
"""Largest difference over largest value. TF32 is off, yet kernels may multiply in it: it keeps 10 bits of a factor."""


def small(architecture: str) -> ModelDims:
    """Two layers of the architecture with the head sizes of published models, which decide what blocks kernels take."""
    published = {"mamba1": "130m", "mamba2": "130m"}.get(architecture, "demo")
    return replace(dims(architecture, published, VOCABULARY), d_model=256, n_layer=2)


def outcome(
    model: RecurrentLanguageModel, tokens_BT1: Tensor, given: list[dict[str, Tensor]]
) -> dict[str, list[Tensor]]:
    """Outputs, final states, gradients of the parameters and of the given state; the loss reads all of them."""
    state = [{name: part.detach().clone().requires_grad_() for name, part in layer.items()} for layer in given]
    hidden, final = model(tokens_BT1[:, :-1], state)
    nll_sum, count = cross_entropy_sum(hidden, tokens_BT1[:, 1:], model)
    finals = [part for layer in final for part in layer.values()]
    (nll_sum / count + sum(part.float().square().mean() for part in finals)).backward()
    return {
        "logits": [model.head(hidden.detach())],
        "final state": finals,
        "gradients": [p.grad for p in model.parameters() if p.grad is not None],
        "gradient of h0": [part.grad for layer in state for part in layer.values() if part.grad is not None],
    }


def state_of(model: RecurrentLanguageModel, rows: int) -> State:
    """A state that is nowhere zero, in the model's dtypes, on its device."""
    device = model.head_weight().device
    generator = torch.Generator(device).manual_seed(1)
    return [
        {
            name: torch.randn(part.shape, generator=generator, device=device).to(part.dtype) * 0.3
            for name, part in layer.items()
        }
        for layer in model.zero_state(rows)
    ]


def relative_error(found: list[Tensor], right: list[Tensor]) -> float:
    """Largest difference over the largest right value, tensor by tensor; the largest of these."""
    return max(
        float(
            (one.detach().double() - other.detach().double()).abs().max() / other.detach().abs().max().clamp(min=1e-12)
        )
        for one, other in zip(found, right, strict=True)
    )


def errors(
    architecture: str, length: int, dtype: torch.dtype, kernel: str = "fused", device: str = "cuda"
) -> dict[str, float]:
    """Relative errors of a kernel in `dtype` against `naive` in float64, both with the same rounded parameters."""
    tested = model_of(small(architecture), 0, kernel).in_precision(dtype).to(device)
    naive = model_of(small(architecture), 0, "naive").to(device, torch.float64)
    naive.load_state_dict({name: value.double() for name, value in tested.state_dict().items()})
    generator = torch.Generator(device).manual_seed(length)
    tokens = torch.randint(VOCABULARY, (ROWS, length + 1), generator=generator, device=device)
    given = state_of(tested, ROWS)
    found = outcome(tested, tokens, given)
    right = outcome(naive, tokens, [{name: part.double() for name, part in layer.items()} for layer in given])
    return {name: relative_error(found[name], right[name]) for name in right}


def accuracy() -> tuple[str, bool]:
    """The table, and whether every error is within its tolerance."""
    torch.backends.cuda.matmul.allow_tf32 = False
    lines, right = [], True
    for architecture in ARCHITECTURES:
        for dtype, tolerance in TOLERANCES.items():
            for length in LENGTHS:
                found = errors(architecture, length, dtype)
                within = max(found.values()) <= tolerance
                right &= within
                name = str(dtype).removeprefix("torch.")
                cells = [f"{value:.1e}" for value in found.values()]
                lines.append([f"{architecture} {name}", length, *cells, tolerance, "yes" if within else "NO"])
    columns = ["model", "T", "logits", "final state", "gradients", "gradient of h0", "at most", "right"]
    return table(columns, lines), right
