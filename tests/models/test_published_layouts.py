"""What files of elsewhere may look like: weights in parts, fused gates, the World's names, padding, hostile files."""

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.checkpoints import load_checkpoint, save_checkpoint
from models.content import check_checkpoint, content_hash
from models.errors import ModelError
from models.layout import dims_from_config, fitted_dims
from models.loss import cross_entropy_sum, token_nll
from models.registry import dims
from tests.models.makers import TINY, random_model, relative_error, tokens

OFFICIAL = Path(__file__).parent / "references" / "rwkv6-official"
TOLERANCE = 1e-5


def in_parts(folder: Path, ending: str) -> None:
    """Cut the weights of a checkpoint in two, with an index, as transformers cuts large ones."""
    whole = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    stem, write = ("model", save_file) if ending == "safetensors" else ("pytorch_model", torch.save)
    table: dict[str, str] = {}
    for number in (1, 2):
        part = {name: value for index, (name, value) in enumerate(whole.items()) if index % 2 == number - 1}
        name = f"{stem}-0000{number}-of-00002.{ending}"
        write(part, folder / name)
        table |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 0}, "weight_map": table}
    (folder / f"{stem}.{ending}.index.json").write_text(json.dumps(index))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_checkpoint(random_model("mamba2", torch.float32), TINY, tmp_path / "base")
    return tmp_path / "base"


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_weights_in_parts_are_read_as_one(folder: Path, ending: str) -> None:
    right = load_checkpoint(folder).state_dict()
    whole_hash = content_hash(folder)
    in_parts(folder, ending)
    check_checkpoint(folder, TINY)
    found = load_checkpoint(folder, TINY).state_dict()
    assert all(torch.equal(found[name], right[name]) for name in right)
    assert content_hash(folder) not in (whole_hash, "")


def change_index(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": change(json.loads(path.read_text())["weight_map"])}))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda table: table | {"more": "model-9.safetensors"},
            "lacks model-9.safetensors, which model.safetensors.ind",
        ),
        (
            lambda table: table | {"more": "../secret.safetensors"},
            "names files that are no .safetensors files beside it",
        ),
        (lambda table: table | {"more": "evil.bin"}, "names files that are no .safetensors files beside it"),
        (lambda table: [], "has no weight_map from tensors to files"),
        (lambda table: {"one": 3}, "has no weight_map from tensors to files"),
    ],
)
def test_an_index_that_is_not_one_is_refused(
    folder: Path, change: Callable[[dict[str, str]], object], sentence: str
) -> None:
    in_parts(folder, "safetensors")
    (folder / "evil.bin").write_bytes(b"")
    change_index(folder, change)
    for check in (check_checkpoint, load_checkpoint):
        with pytest.raises(ModelError, match=sentence):
            check(folder, TINY)


class Hostile:
    """What runs when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path("owned"),)  # type: ignore[return-value]


@pytest.mark.parametrize("write", [torch.save, lambda what, path: path.write_bytes(pickle.dumps(what, protocol=2))])
@pytest.mark.parametrize("what", [Hostile(), {"backbone.norm_f.weight": Hostile()}, [1, 2], {"a": "text"}])
def test_nothing_but_tensors_is_unpickled(
    what: object,
    write: Callable[[object, Path], None],
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (folder / "model.safetensors").unlink()
    write(what, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="pytorch_model.bin (cannot be read|holds something else)") as caught:
        load_checkpoint(folder, TINY)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "owned").exists()


def test_pickled_weights_that_are_cut_short_are_refused(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    whole = (folder / "pytorch_model.bin").read_bytes()
    for length in (0, 10, len(whole) // 2, len(whole) - 1):
        (folder / "pytorch_model.bin").write_bytes(whole[:length])
        with pytest.raises(ModelError, match="pytorch_model.bin cannot be read .*: copy the checkpoint again"):
            load_checkpoint(folder, TINY)


def test_gla_files_with_both_matrices_in_the_gate_are_read(tmp_path: Path) -> None:
    model = random_model("gla", torch.float32)
    save_checkpoint(model, model.dims, tmp_path)
    whole = load_file(tmp_path / "model.safetensors")
    for layer in range(model.dims.n_layer):
        gate, up = (f"model.layers.{layer}.mlp.{name}_proj.weight" for name in ("gate", "up"))
        # The gate's rows first: flash-linear-attention until February 2025, `gate, y = gate_proj(x).chunk(2, -1)`.
        whole[gate] = torch.cat([whole[gate], whole.pop(up)])
    save_file(whole, tmp_path / "model.safetensors")
    check_checkpoint(tmp_path, model.dims)
    found, right = load_checkpoint(tmp_path).state_dict(), model.state_dict()
    assert found.keys() == right.keys()
    assert all(torch.equal(found[name], right[name]) for name in right)


def test_official_rwkv6_computes_what_its_class_computed() -> None:
    model, right = load_checkpoint(OFFICIAL), load_file(OFFICIAL / "expected.safetensors")
    check_checkpoint(OFFICIAL, model.dims)
    cut = right["tokens"].shape[1] - right["continued_logits"].shape[1]
    with torch.no_grad():
        hidden, final = model(right["tokens"])
        _, state = model(right["tokens"][:, :cut])
        continued, _ = model(right["tokens"][:, cut:], state)
    assert relative_error(model.head(hidden), right["logits"]) < TOLERANCE
    assert relative_error(model.head(continued), right["continued_logits"]) < TOLERANCE
    for layer, parts in enumerate(final):
        assert relative_error(parts["recurrent"], right[f"state.{layer}.recurrent"]) < TOLERANCE
        for index, name in enumerate(("attn_shift", "ffn_shift")):
            assert relative_error(parts["shift"][:, index], right[f"state.{layer}.{name}"]) < TOLERANCE


@pytest.mark.parametrize(("width", "layers", "size"), [(2048, 24, "1.6b"), (2560, 32, "3b"), (4096, 32, "7b")])
def test_the_world_models_are_the_sizes_of_that_name(width: int, layers: int, size: str) -> None:
    config = json.loads((OFFICIAL / "config.json").read_text())
    config |= {"hidden_size": width, "attention_hidden_size": width, "head_size": 64, "vocab_size": 65536}
    found = dims_from_config(config | {"num_hidden_layers": layers}, "config.json")
    assert found == dims("rwkv6", size)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon = 1e-06"),
        ({"attention_hidden_size": 40}, "attention_hidden_size = 40"),
        ({"head_size": 7}, "heads of 7 channels in a width of 20"),
        ({"hidden_size": None}, "heads of 10 channels in a width of None"),
    ],
)
def test_a_world_model_of_another_kind_is_refused(change: dict[str, object], sentence: str) -> None:
    config = json.loads((OFFICIAL / "config.json").read_text())
    with pytest.raises(ModelError, match=sentence):
        dims_from_config(config | change, "config.json")


def test_an_official_file_that_lacks_a_tensor_is_refused_by_the_name_there(tmp_path: Path) -> None:
    weights = torch.load(OFFICIAL / "pytorch_model.bin", weights_only=True)
    del weights["rwkv.blocks.1.attention.time_maa_g"]
    torch.save(weights, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text((OFFICIAL / "config.json").read_text())
    with pytest.raises(ModelError, match="lacks the tensor rwkv.blocks.1.attention.time_maa_g"):
        load_checkpoint(tmp_path)


def test_a_checkpoint_says_itself_how_its_norms_and_its_head_are() -> None:
    found = replace(dims("gla", "340m"), norm_eps=1e-5, tied=False)
    fitted = fitted_dims(found, dims("gla", "340m"), "checkpoint")
    assert (fitted.norm_eps, fitted.tied) == (1e-5, False)


def test_a_world_model_that_was_converted_is_told_how_to_say_so() -> None:
    found = replace(dims("rwkv6", "1.6b"), head_norm_eps=1e-5)  # type: ignore[call-arg]
    with pytest.raises(ModelError, match='"initial_state_sweeps": {"head_norm_eps": 0.00064} into its config.json'):
        fitted_dims(found, dims("rwkv6", "1.6b"), "checkpoint")


@pytest.mark.parametrize("architecture", ["mamba1", "mamba2", "gla", "rwkv6"])
def test_rows_that_pad_the_vocabulary_change_nothing(architecture: str, tmp_path: Path) -> None:
    plain = random_model(architecture, torch.float32)
    entries = plain.dims.vocab_size
    save_checkpoint(plain, plain.dims, tmp_path)
    whole: dict[str, Tensor] = load_file(tmp_path / "model.safetensors")
    for name in {plain.dims.EMBEDDING, plain.dims.HEAD} & whole.keys():
        whole[name] = torch.cat([whole[name][:entries], torch.full((24 - entries, whole[name].shape[1]), 9.0)])
    save_file(whole, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    multiple = {"pad_vocab_size_multiple": 8} if "pad_vocab_size_multiple" in config else {}
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 24} | multiple))
    padded = load_checkpoint(tmp_path, plain.dims)
    assert (padded.dims.vocab_size, padded.dims.vocab_rows) == (entries, 24)
    x = tokens(2, 13, vocab_size=entries)
    with torch.no_grad():
        found, right = padded(x)[0], plain(x)[0]
        assert torch.equal(padded.head(found), plain.head(right))
        assert torch.equal(token_nll(found, x, padded), token_nll(right, x, plain))
    total, _ = cross_entropy_sum(padded(x)[0], x, padded)
    total.backward()
    gradient = dict(padded.named_parameters(remove_duplicate=False))[padded.dims.HEAD].grad
    assert isinstance(gradient, Tensor)
    assert not gradient[entries:].any() and gradient[:entries].any()
