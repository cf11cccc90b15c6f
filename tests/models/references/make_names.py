"""Write names.json: how published checkpoints name and shape their parameters, according to their own classes.

    python -m tests.models.references.make_names          (from the root of the repository; versions: README.md)

The models are built on the meta device, without memory for weights. An entry keeps the configuration, the shapes of
layers 0 and 1 and of what belongs to no layer, and the number of all parameters: `total` with a head of its own,
`tied_total` where the head is the embedding.
"""

import json
import re
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from tests.models.interpreter import switch_on

GLA = {"num_hidden_layers": 24, "num_heads": 4}
# RWKV-6 World: heads of 64 channels and keys as wide as values.
WORLD = {"hidden_size": 2048, "num_hidden_layers": 24, "num_heads": 32, "expand_k": 1.0, "vocab_size": 65536}
HF_130M = {"hidden_size": 768, "num_hidden_layers": 24}
# Name of the entry, library, prefix of its classes, what differs from the defaults of its configuration.
MODELS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("gla-340M", "fla.models", "GLA", {"hidden_size": 1024} | GLA),
    ("gla-1.3B", "fla.models", "GLA", {"hidden_size": 2048} | GLA),
    ("rwkv6-default", "fla.models", "RWKV6", {}),
    ("rwkv6-world-1.6B", "fla.models", "RWKV6", WORLD),
    ("mamba-130m-hf", "transformers", "Mamba", {"vocab_size": 50280} | HF_130M),
    (
        "mamba2-130m-hf",
        "transformers",
        "Mamba2",
        {"vocab_size": 50288, "num_heads": 24, "head_dim": 64, "state_size": 128, "n_groups": 1} | HF_130M,
    ),
)


def main() -> None:
    switch_on()
    warnings.filterwarnings("ignore")
    found = {name: entry(library, prefix, settings) for name, library, prefix, settings in MODELS}
    Path(__file__).with_name("names.json").write_text(as_json(found))
    for name, model in found.items():
        print(name, model["total"], model["tied_total"])


def entry(library: str, prefix: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The names, shapes and number of parameters of a published model; settings: what differs from its defaults."""
    classes = import_module(library)
    config = getattr(classes, f"{prefix}Config")(**settings | {"tie_word_embeddings": False})
    with torch.device("meta"):
        model = getattr(classes, f"{prefix}ForCausalLM")(config)
    shapes = {name: list(parameter.shape) for name, parameter in model.named_parameters()}
    total = sum(parameter.numel() for parameter in model.parameters())
    return {
        "class": f"{library}.{prefix}ForCausalLM",
        "config": settings,
        "total": total,
        "tied_total": total - model.lm_head.weight.numel(),
        "shapes": {name: shape for name, shape in shapes.items() if not re.search(r"layers\.(?![01]\.)\d", name)},
    }


def as_json(found: dict[str, Any]) -> str:
    """Indented, with each shape on the line of its name."""
    text = json.dumps(found, indent=1)
    return (
        re.sub(r"\[\s*(\d[\d,\s]*?)\s*\]", lambda shape: f"[{', '.join(re.findall(r'[0-9]+', shape[1]))}]", text) + "\n"
    )


if __name__ == "__main__":
    main()
