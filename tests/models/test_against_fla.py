"""An independent oracle: GLA and RWKV-6 compute what flash-linear-attention's own models and kernels computed.

The files in `references/` were written by that library; see its README for how. `names.json` says what its published
configurations call their tensors.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from models.architecture import ModelDims
from models.checkpoints import load_checkpoint
from models.content import check_checkpoint
from models.interface import RecurrentLanguageModel
from models.layout import OWN_KEY, dims_from_config, layout_of
from models.loss import cross_entropy_sum
from models.registry import dims
from models.rwkv6.dims import Rwkv6Dims
from tests.models.makers import relative_error

REFERENCES = Path(__file__).parent / "references"
NAMES: dict[str, Any] = json.loads((REFERENCES / "names.json").read_text())
FOLDERS = ("gla", "gla-tied", "rwkv6", "rwkv6-world")
WORLD_EPS = 64e-5
TOLERANCE, GRADIENT_TOLERANCE = 1e-5, 1e-4


@pytest.fixture(params=FOLDERS)
def reference(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[RecurrentLanguageModel, dict[str, Tensor]]:
    folder = REFERENCES / request.param
    if request.param == "rwkv6-world":
        folder = with_world_epsilon(folder, tmp_path)
    model = load_checkpoint(folder)
    check_checkpoint(folder, model.dims)
    return model, load_file(folder / "expected.safetensors")


def with_world_epsilon(folder: Path, tmp_path: Path) -> Path:
    """A copy whose config.json says what flash-linear-attention's has no key for."""
    copy = tmp_path / folder.name
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {OWN_KEY: {"head_norm_eps": WORLD_EPS}}))
    return copy


def test_logits_and_states_equal_those_of_fla(reference: tuple[RecurrentLanguageModel, dict[str, Tensor]]) -> None:
    model, right = reference
    with torch.no_grad():
        hidden, final = model(right["tokens"])
        assert relative_error(model.head(hidden), right["logits"]) < TOLERANCE
        assert relative_error(model.head(model(right["short_tokens"])[0]), right["short_logits"]) < TOLERANCE
        long = model.head(model(right["long_tokens"])[0])
        assert relative_error(long[:, -right["long_logits"].shape[1] :], right["long_logits"]) < TOLERANCE
    for layer, parts in enumerate(final):
        assert relative_error(parts["recurrent"], right[f"state.{layer}.recurrent"]) < TOLERANCE
        for index, name in enumerate(("attn_shift", "ffn_shift")):
            if "shift" in parts:
                assert relative_error(parts["shift"][:, index], right[f"state.{layer}.{name}"]) < TOLERANCE


def test_continuing_from_a_state_equals_fla_continuing(
    reference: tuple[RecurrentLanguageModel, dict[str, Tensor]],
) -> None:
    model, right = reference
    cut = right["tokens"].shape[1] - right["continued_logits"].shape[1]
    with torch.no_grad():
        _, state = model(right["tokens"][:, :cut])
        hidden, _ = model(right["tokens"][:, cut:], state)
        assert relative_error(model.head(hidden), right["continued_logits"]) < TOLERANCE


def test_loss_and_gradients_equal_those_of_fla(reference: tuple[RecurrentLanguageModel, dict[str, Tensor]]) -> None:
    model, right = reference
    tokens_BT = right["tokens"]
    total, count = cross_entropy_sum(model(tokens_BT[:, :-1])[0], tokens_BT[:, 1:], model)
    (total / count).backward()
    assert (total / count).item() == pytest.approx(float(right["loss"]), rel=1e-6)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert relative_error(parameter.grad, right[f"grad.{name}"]) < GRADIENT_TOLERANCE, name


@pytest.mark.parametrize(
    ("published", "size"),
    [
        ("gla-340M", dims("gla", "340m")),
        ("gla-1.3B", dims("gla", "1.3b")),
        ("rwkv6-default", Rwkv6Dims(d_model=2048, n_layer=24, n_heads=4, expand_k=0.5, vocab_size=32000)),
        ("rwkv6-world-1.6B", dims("rwkv6", "1.6b")),
        ("mamba-130m-hf", dims("mamba1", "130m")),
        ("mamba2-130m-hf", dims("mamba2", "130m")),
    ],
)
def test_names_shapes_and_counts_equal_the_published_classes(published: str, size: ModelDims) -> None:
    entry = NAMES[published]
    theirs = {name: tuple(shape) for name, shape in entry["shapes"].items()}
    own = layout_of(size).file_shapes(size, theirs.keys())
    later = re.compile(r"\.layers\.(?![01]\.)")
    assert theirs == {name: shape for name, shape in own.items() if not later.search(name)}
    assert size.parameters() == entry["tied_total" if size.tied else "total"]


def test_a_world_model_without_its_epsilon_is_not_taken_for_one() -> None:
    config = json.loads((REFERENCES / "rwkv6-world" / "config.json").read_text())
    assert dims_from_config(config, "config.json").head_norm_eps == config["norm_eps"] != WORLD_EPS  # type: ignore[attr-defined]
