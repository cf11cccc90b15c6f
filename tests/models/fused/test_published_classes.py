"""Language models of mamba_ssm and flash-linear-attention: what they write is read, and what is exported they read.

Their kernels are Triton's, in the interpreter. Mamba-1's scan exists for CUDA alone; its place takes mamba_ssm's own
`selective_scan_ref`, and causal convolutions run by torch, as mamba_ssm itself does without causal-conv1d.
"""

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from models.checkpoints import load_checkpoint, save_checkpoint
from models.content import check_checkpoint
from models.export import export_checkpoint
from models.rwkv6.dims import Rwkv6Dims
from tests.models.makers import random_model, relative_error, tokens

TOLERANCE = 1e-4
VOCABULARY = 19
SSM = {
    "mamba1": {"layer": "Mamba1", "d_state": 5, "dt_rank": 3},
    "mamba2": {"layer": "Mamba2", "d_state": 16, "headdim": 8, "ngroups": 2, "chunk_size": 16},
}


@pytest.fixture(scope="module")
def library() -> Any:
    """mamba_ssm's module of language models."""
    # Imported at its top by the module of Mamba-1's scan, and used only with CUDA tensors.
    sys.modules.setdefault("selective_scan_cuda", ModuleType("selective_scan_cuda"))
    simple: Any = importlib.import_module("mamba_ssm.modules.mamba_simple")
    simple.selective_scan_fn = importlib.import_module("mamba_ssm.ops.selective_scan_interface").selective_scan_ref
    return importlib.import_module("mamba_ssm.models.mixer_seq_simple")


@pytest.fixture(params=list(SSM))
def theirs(request: pytest.FixtureRequest, library: Any) -> Any:
    """A small model of mamba_ssm in which every parameter matters."""
    torch.manual_seed(0)
    config = library.MambaConfig(
        d_model=16, n_layer=2, vocab_size=VOCABULARY, ssm_cfg=SSM[request.param], pad_vocab_size_multiple=8
    )
    return without_cuda(library.MambaLMHeadModel(config), randomise=True)


@torch.no_grad()
def without_cuda(model: Any, *, randomise: bool = False) -> Any:
    """The model on the paths that mamba_ssm has beside its CUDA-only ones."""
    for layer in model.backbone.layers:
        layer.mixer.use_mem_eff_path = layer.mixer.use_fast_path = False
    for parameter in model.parameters() if randomise else ():
        parameter.add_(torch.randn(parameter.shape), alpha=0.2)
    return model.eval()


@torch.no_grad()
def test_what_mamba_ssm_writes_computes_the_same_here(theirs: Any, tmp_path: Path) -> None:
    theirs.save_pretrained(tmp_path)
    ours = load_checkpoint(tmp_path)
    check_checkpoint(tmp_path, ours.dims)
    assert (ours.dims.vocab_size, ours.dims.vocab_rows) == (VOCABULARY, 24)
    x = tokens(1, 24, vocab_size=VOCABULARY)
    right = theirs(x).logits[..., :VOCABULARY]
    assert relative_error(ours.head(ours(x)[0]), right) < TOLERANCE
    _, state = ours(x[:, :9])
    assert relative_error(ours.head(ours(x[:, 9:], state)[0]), right[:, 9:]) < TOLERANCE


@torch.no_grad()
def test_what_is_exported_mamba_ssm_reads(theirs: Any, library: Any, tmp_path: Path) -> None:
    theirs.save_pretrained(tmp_path / "theirs")
    export_checkpoint(tmp_path / "theirs", tmp_path / "ours", "published")
    found = without_cuda(library.MambaLMHeadModel.from_pretrained(str(tmp_path / "ours")))
    right = theirs.state_dict()
    assert found.state_dict().keys() == right.keys()
    assert all(torch.equal(value, right[name]) for name, value in found.state_dict().items())
    x = tokens(1, 7, vocab_size=VOCABULARY)
    # Not bit-equal: the length of a chunk of Mamba-2's scan is in no config.json of ours.
    assert relative_error(found(x).logits, theirs(x).logits) < TOLERANCE


@pytest.mark.parametrize(("architecture", "name"), [("gla", "GLA"), ("rwkv6", "RWKV6")])
def test_what_is_exported_flash_linear_attention_reads(architecture: str, name: str, tmp_path: Path) -> None:
    fla: Any = importlib.import_module(f"fla.models.{architecture}")
    model = random_model(architecture, torch.bfloat16)
    size = model.dims
    if isinstance(size, Rwkv6Dims):
        # The only one that flash-linear-attention can say.
        size = replace(size, head_norm_eps=size.norm_eps)
    save_checkpoint(model, size, tmp_path / "base")
    export_checkpoint(tmp_path / "base", tmp_path / "out", "hf")
    found = getattr(fla, f"{name}ForCausalLM").from_pretrained(tmp_path / "out").state_dict()
    right = model.state_dict()
    assert found.keys() == right.keys()
    assert all(found[key].dtype == torch.bfloat16 and torch.equal(found[key], right[key]) for key in right)
