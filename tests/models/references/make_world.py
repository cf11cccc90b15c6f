"""Make the folder `rwkv6-official` with the classes that RWKV/rwkv-6-world-* are read with. The tests only read it.

    python -m tests.models.references.make_world CHECKOUT

CHECKOUT is github.com/BBuf/RWKV-World-HF-Tokenizer at 699270b, whose `rwkv6_model/` holds configuration_rwkv6.py and
modeling_rwkv6.py (Apache-2.0), the files of those repositories. On a CPU they run a loop over time, without kernels.
It needs torch 2.13.0 (CPU) and transformers 5.24.0.
"""

import importlib
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

FOLDER = Path(__file__).parent / "rwkv6-official"
SIZE: dict[str, Any] = {"hidden_size": 20, "num_hidden_layers": 2, "head_size": 10, "vocab_size": 37}
ROWS, LENGTH, CUT, SEED = 2, 40, 17, 5


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    configuration = importlib.import_module("rwkv6_model.configuration_rwkv6").Rwkv6Config(**SIZE)
    model = importlib.import_module("rwkv6_model.modeling_rwkv6").Rwkv6ForCausalLM(configuration).eval()
    randomise(model)
    FOLDER.mkdir(exist_ok=True)
    # As the converter of that repository writes its files.
    configuration.save_pretrained(FOLDER)
    torch.save(model.state_dict(), FOLDER / "pytorch_model.bin")
    metadata = {name: version(name) for name in ("torch", "transformers")} | {"cut": str(CUT)}
    save_file(expected(model), FOLDER / "expected.safetensors", metadata)


@torch.no_grad()
def randomise(model: Any) -> None:
    """Draw every parameter anew, so that none stays at a 0 or 1 that would hide a mistake."""
    generator = torch.Generator().manual_seed(SEED)
    for name, parameter in model.named_parameters():
        if name.endswith("time_decay"):
            # The class makes a row of it and its own initial values (H, K); the published files hold the row.
            parameter.data = -5 + 7 * torch.rand(1, 1, parameter.numel(), generator=generator)
            continue
        normal = torch.randn(parameter.shape, generator=generator)
        if "time_maa_w" not in name and ("time_maa" in name or (name.endswith("weight") and parameter.ndim == 1)):
            parameter.copy_(0.5 + torch.special.ndtr(normal))
        elif parameter.ndim == 1 or name.endswith("time_faaaa"):
            parameter.copy_(0.4 * normal)
        else:
            parameter.copy_(normal * parameter.shape[-1] ** -0.5)


@torch.no_grad()
def expected(model: Any) -> dict[str, Tensor]:
    """What the class computes: logits (B, T, V) of tokens (B, T) in one pass, and from a state after a cut; states."""
    tokens_BT = torch.randint(SIZE["vocab_size"], (ROWS, LENGTH), generator=torch.Generator().manual_seed(SEED))
    before = model(tokens_BT[:, :CUT], use_cache=True)
    after = model(tokens_BT[:, CUT:], state=before.state, use_cache=True)
    shift_BDL, recurrent_BHKVL, ffn_shift_BDL = after.state
    found = {"tokens": tokens_BT, "logits": model(tokens_BT).logits, "continued_logits": after.logits}
    for layer in range(SIZE["num_hidden_layers"]):
        found[f"state.{layer}.recurrent"] = recurrent_BHKVL[..., layer]
        found[f"state.{layer}.attn_shift"] = shift_BDL[..., layer]
        found[f"state.{layer}.ffn_shift"] = ffn_shift_BDL[..., layer]
    return {name: value.contiguous() for name, value in found.items()}


if __name__ == "__main__":
    main()
