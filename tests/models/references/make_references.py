"""Make the reference files of this folder with flash-linear-attention's own GLA and RWKV-6. The tests only read them.

    python -m tests.models.references.make_references     (from the root of the repository; 3 minutes on one core)

Every module is fla's, with its real Triton kernels (recurrences, norms, token shift, SwiGLU) executed by Triton's
interpreter; nothing is replaced by a naive version. Only `fuse_cross_entropy` is off, because that kernel insists on a
GPU tensor: fla's model then takes torch's. fla runs its recurrent kernel up to 64 tokens, its chunk kernel beyond.
It needs torch 2.13.0 (CPU), triton 3.9.0, fla-core and flash-linear-attention 0.6.0, transformers 5.23.0, einops 0.8.2.
"""

import json
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.models.interpreter import adapt_ranges, switch_on

FOLDER = Path(__file__).parent
# Awkward on purpose: no width (of a head either), vocabulary or length is a power of two; the cut is off the middle.
SHARED: dict[str, Any] = {
    "hidden_size": 20,
    "num_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 36,
    "vocab_size": 37,
    "fuse_cross_entropy": False,
}
LOW_RANK = {"proj_low_rank_dim": 6, "gate_low_rank_dim": 7}
ROWS, LENGTH, CUT, SHORT, LONG = 2, 40, 17, 7, 66
WORLD_EPS = 64e-5
PACKAGES = ("torch", "triton", "fla-core", "flash-linear-attention", "transformers")


@dataclass(frozen=True)
class Reference:
    """One folder: fla's model, its configuration and, for World, the group-norm epsilon that no configuration keeps."""

    folder: str
    model: str
    seed: int
    settings: dict[str, Any] = field(default_factory=dict)
    g_norm_eps: float | None = None


REFERENCES = (
    Reference("gla", "GLA", 1),
    Reference("gla-tied", "GLA", 2, {"tie_word_embeddings": True, "num_hidden_layers": 1}),
    Reference("rwkv6", "RWKV6", 3, LOW_RANK),
    Reference("rwkv6-world", "RWKV6", 4, {"expand_k": 1.0} | LOW_RANK, WORLD_EPS),
)


def main() -> None:
    switch_on()
    warnings.filterwarnings("ignore")
    for reference in REFERENCES:
        model = build(reference)
        adapt_ranges("fla")
        folder = FOLDER / reference.folder
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink()  # how to sample from it: no business of ours
        metadata = {name: version(name) for name in PACKAGES} | {"cut": str(CUT)}
        if reference.g_norm_eps is not None:
            metadata["g_norm_eps"] = str(reference.g_norm_eps)
        save_file(expected(model, reference.seed), folder / "expected.safetensors", metadata)
        print(json.dumps({reference.folder: sum(path.stat().st_size for path in folder.iterdir())}), flush=True)


def build(reference: Reference) -> Any:
    """fla's causal language model with random weights, fp32, on the CPU."""
    import fla.models

    config = getattr(fla.models, f"{reference.model}Config")(**SHARED | reference.settings)
    model = getattr(fla.models, f"{reference.model}ForCausalLM")(config)
    randomise(model, reference.seed)
    for layer in model.model.layers if reference.g_norm_eps is not None else ():
        layer.attn.g_norm.eps = reference.g_norm_eps
    return model


@torch.no_grad()
def randomise(model: Any, seed: int) -> None:
    """Draw every parameter anew, so that none stays at a 0 or 1 that would hide a mistake."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        parameter.copy_(drawn(name, torch.randn(parameter.shape, generator=generator)))


def drawn(name: str, normal: Tensor) -> Tensor:
    """The value of one parameter from standard normals of its shape."""
    uniform = torch.special.ndtr(normal)
    if name.endswith("gk_proj.1.bias"):
        return -4 + 4 * normal  # GLA: log decays a step from about 0 to -0.7
    if name.endswith("lora.2.bias"):
        return -5 + 7 * uniform  # RWKV-6: log decays a step from about -0.007 to -7
    if name.endswith((".mu", "x_bias")):
        return uniform
    if name.endswith("norm.weight") or name.endswith("g_norm_swish_gate.weight"):
        return 0.5 + uniform
    if name.endswith((".bias", "bonus")):
        return 0.4 * normal
    return normal / math.sqrt(normal.shape[-1])  # a matrix keeps the size of what passes through it


def expected(model: Any, seed: int) -> dict[str, Tensor]:
    """What fla computes, fp32: logits (B, T, V) of three batches and after a cut, final states, loss and gradients."""
    generator = torch.Generator().manual_seed(1000 + seed)
    tokens_BT = torch.randint(SHARED["vocab_size"], (ROWS, LENGTH), generator=generator)
    tail_T = torch.randint(SHARED["vocab_size"], (LONG - LENGTH,), generator=generator)
    found = {
        "tokens": tokens_BT,
        "short_tokens": tokens_BT[:, -SHORT:],
        "long_tokens": torch.cat((tokens_BT[0], tail_T))[None],
    }
    with torch.no_grad():
        found |= {name.replace("tokens", "logits"): model(tokens).logits for name, tokens in list(found.items())}
        cache = model(tokens_BT[:, :CUT], use_cache=True).past_key_values
        after = model(tokens_BT[:, CUT:], past_key_values=cache, use_cache=True)
    found |= {"continued_logits": after.logits} | dict(states(model, after.past_key_values))
    check_that_kernels_agree(found)
    found["long_logits"] = found["long_logits"][:, LENGTH:]  # the rest equals `logits`, as was just checked
    loss = model(tokens_BT, labels=tokens_BT, use_cache=False).loss
    loss.backward()
    found |= {"loss": loss.detach()} | {f"grad.{name}": p.grad for name, p in model.named_parameters()}
    return {name: value.contiguous() for name, value in found.items()}


def states(model: Any, cache: Any) -> Iterator[tuple[str, Tensor]]:
    """Each layer's final state: recurrent (B, H, K, V); in RWKV-6 also two token shifts (B, D), last normed inputs."""
    for layer, kept in enumerate(cache):
        recurrent = kept["recurrent_state"]
        # GLA's layer keeps its state with the values first; RWKV-6's keeps the keys first.
        yield f"state.{layer}.recurrent", recurrent.transpose(-1, -2) if model.config.model_type == "gla" else recurrent
        for name, part in (("attn_shift", "conv_state"), ("ffn_shift", "ffn_state")):
            if kept[part] is not None:
                yield f"state.{layer}.{name}", kept[part]


def check_that_kernels_agree(found: dict[str, Tensor]) -> None:
    """fla's recurrent kernel, its chunk kernel and its pass over a cache must agree before we believe any of them."""
    pairs = {
        "chunk kernel against recurrent kernel": (found["long_logits"][0, :LENGTH], found["logits"][0]),
        "second half from a cache against one pass": (found["continued_logits"], found["logits"][:, CUT:]),
    }
    for what, (one, other) in pairs.items():
        error = float((one - other).abs().max() / other.abs().max())
        print(f"{what}: {error:.1e}", flush=True)
        if not error < 1e-5:
            raise RuntimeError(f"{what}: relative error {error:.1e}, more than 1e-5.")


if __name__ == "__main__":
    main()
