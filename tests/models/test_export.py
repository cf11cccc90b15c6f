"""Exports: bit-equal after a round trip, in the names of either layout, and read by the classes of transformers."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from models.architecture import LAYOUTS
from models.checkpoints import load_checkpoint, read_tensors, save_checkpoint
from models.content import read_config
from models.errors import ModelError
from models.export import NOTES, export_checkpoint, main
from models.layout import dims_from_config
from models.registry import ARCHITECTURES, dims, model_of
from models.rwkv6.dims import Rwkv6Dims
from tests.models.makers import random_model, relative_error, tokens

WORLD = Rwkv6Dims(d_model=20, n_layer=2, n_heads=2, ffn_width=64, vocab_size=19)
OFFICIAL = Path(__file__).parent / "references" / "rwkv6-official"
MAMBA_CONFIG = {
    *("d_model", "d_intermediate", "n_layer", "vocab_size", "ssm_cfg", "attn_layer_idx", "attn_cfg", "rms_norm"),
    *("residual_in_fp32", "fused_add_norm", "pad_vocab_size_multiple", "tie_embeddings"),
}
"""Fields of MambaConfig in mamba-ssm 2.3.2, which takes no other key."""


def save(architecture: str, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """A small checkpoint that either layout can say, with notes and a tokenizer."""
    model = random_model(architecture, dtype)
    size = model.dims
    if isinstance(size, Rwkv6Dims):
        size = replace(size, head_norm_eps=size.norm_eps)
    (folder.parent / "t.json").write_text('{"model": {}}')
    save_checkpoint(model, size, folder, {"made_by": "a test"}, folder.parent / "t.json")


def tensors(folder: Path) -> dict[str, Tensor]:
    return read_tensors(folder, dims_from_config(read_config(folder), "config.json"))


def same(found: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    return found.keys() == right.keys() and all(
        found[name].dtype == right[name].dtype and torch.equal(found[name], right[name]) for name in right
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_tensor_comes_back_bit_equal(architecture: str, layout: str, dtype: torch.dtype, tmp_path: Path) -> None:
    if (architecture, layout) == ("rwkv6", "published"):
        save_checkpoint(model_of(WORLD, seed=1).to(dtype), WORLD, tmp_path / "base")
    else:
        save(architecture, tmp_path / "base", dtype)
    export_checkpoint(tmp_path / "base", tmp_path / "out", layout)
    assert same(tensors(tmp_path / "out"), tensors(tmp_path / "base"))
    right = load_checkpoint(tmp_path / "base", dtype=dtype)
    found = load_checkpoint(tmp_path / "out", right.dims, dtype=dtype)
    assert same(found.state_dict(), right.state_dict())
    x = tokens(1, 9)
    with torch.no_grad():
        assert torch.equal(found.head(found(x)[0]), right.head(right(x)[0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("architecture", ["mamba1", "mamba2"])
def test_transformers_reads_the_hf_layout(architecture: str, dtype: torch.dtype, tmp_path: Path) -> None:
    save(architecture, tmp_path / "base", dtype)
    export_checkpoint(tmp_path / "base", tmp_path / "out", "hf")
    theirs: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ours = load_checkpoint(tmp_path / "base", dtype=dtype)
    assert theirs.dtype == dtype
    written = {name.replace("embeddings.", "embedding."): value for name, value in theirs.state_dict().items()}
    assert same(written, ours.state_dict())
    if dtype is torch.float32:
        x = tokens(2, 23)
        with torch.no_grad():
            right = theirs(x).logits[..., : ours.vocab_size]
            assert relative_error(ours.head(ours(x)[0]), right) < 1e-5


@pytest.mark.parametrize("architecture", ["mamba1", "mamba2"])
def test_the_published_layout_of_the_mambas_is_what_mamba_ssm_takes(architecture: str, tmp_path: Path) -> None:
    save(architecture, tmp_path / "base")
    assert export_checkpoint(tmp_path / "base", tmp_path / "out", "published").name == "pytorch_model.bin"
    assert set(json.loads((tmp_path / "out" / "config.json").read_text())) == MAMBA_CONFIG
    weights = torch.load(tmp_path / "out" / "pytorch_model.bin", weights_only=True)
    assert torch.equal(weights["lm_head.weight"], weights["backbone.embedding.weight"])


def test_official_rwkv6_files_come_back_as_they_were(tmp_path: Path) -> None:
    export_checkpoint(OFFICIAL, tmp_path / "out", "published")
    right = torch.load(OFFICIAL / "pytorch_model.bin", weights_only=True)
    assert same(load_file(tmp_path / "out" / "model.safetensors"), right)
    written, official = (json.loads((path / "config.json").read_text()) for path in (tmp_path / "out", OFFICIAL))
    assert written.items() <= (official | {"architectures": ["Rwkv6ForCausalLM"]}).items()


def test_tokenizer_and_notes_go_along(tmp_path: Path) -> None:
    save("mamba2", tmp_path / "base")
    export_checkpoint(tmp_path / "base", tmp_path / "out", "hf")
    assert (tmp_path / "out" / "tokenizer.json").read_text() == '{"model": {}}'
    assert json.loads((tmp_path / "out" / NOTES).read_text())["made_by"] == "a test"
    assert "initial_state_sweeps" not in json.loads((tmp_path / "out" / "config.json").read_text())


def test_what_a_layout_cannot_say_is_refused(tmp_path: Path) -> None:
    world, odd = tmp_path / "world", tmp_path / "odd"
    save_checkpoint(model_of(WORLD, seed=0), WORLD, world)
    with pytest.raises(ModelError, match="no key for head_norm_eps, which is 0.00064 here and would be 1e-05 there"):
        export_checkpoint(world, tmp_path / "out", "hf")
    tiny = dims("rwkv6", "tiny")
    save_checkpoint(model_of(tiny, seed=0), tiny, odd)
    with pytest.raises(ModelError, match="no key for expand_k, which is 0.5 here and would be 1.0 there"):
        export_checkpoint(odd, tmp_path / "out", "published")
    other = replace(dims("mamba2", "tiny"), norm_eps=1e-6)
    save_checkpoint(model_of(other, seed=0), other, tmp_path / "mamba")
    with pytest.raises(ModelError, match="no key for the norms' epsilon, which is 1e-06 here .* write --layout hf"):
        export_checkpoint(tmp_path / "mamba", tmp_path / "out", "published")
    assert not (tmp_path / "out").exists()


def test_the_command_line_says_where_it_wrote_or_why_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save("mamba1", tmp_path / "base")
    arguments = [str(tmp_path / "base"), str(tmp_path / "out"), "--layout", "hf"]
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'out' / 'model.safetensors'}\n"
    assert main(arguments) == 2
    assert "out is there already" in capsys.readouterr().err
    assert main([str(tmp_path / "none"), str(tmp_path / "new"), "--layout", "hf"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path / 'none' / 'config.json'} cannot be read")
    save_file({"a": torch.ones(1)}, tmp_path / "base" / "model.safetensors")
    assert main([str(tmp_path / "base"), str(tmp_path / "new"), "--layout", "hf"]) == 2
    assert "lacks the tensor backbone.embedding.weight" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "out", "t.json"]
