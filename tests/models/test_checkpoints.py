"""Checkpoint folders: written whole, read in both published layouts, refused with a reason."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.checkpoints import load_checkpoint, save_checkpoint
from models.content import check_checkpoint, content_hash, read_header
from models.errors import ModelError
from models.interface import RecurrentLanguageModel
from models.layout import config_from_dims, dims_from_config, fitted_dims
from models.mamba2.dims import Mamba2Dims
from models.mamba2.model import Mamba2LanguageModel
from models.registry import ARCHITECTURES, dims
from tests.models import page_example
from tests.models.makers import TINY, random_model, tokens

Tensors = dict[str, Tensor]


@pytest.fixture
def model() -> Mamba2LanguageModel:
    return Mamba2LanguageModel(TINY, seed=4)


@pytest.fixture
def folder(model: Mamba2LanguageModel, tmp_path: Path) -> Path:
    save_checkpoint(model, TINY, tmp_path / "base")
    return tmp_path / "base"


def rewrite(folder: Path, change: Callable[[Tensors], Tensors]) -> None:
    save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors")


def set_config(folder: Path, **values: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def assert_same_outputs(found: RecurrentLanguageModel, right: RecurrentLanguageModel) -> None:
    x = tokens(2, 11)
    with torch.no_grad():
        assert torch.equal(found(x)[0], right(x)[0])


def test_what_is_saved_comes_back(model: Mamba2LanguageModel, folder: Path) -> None:
    loaded = load_checkpoint(folder)
    assert isinstance(loaded, Mamba2LanguageModel)
    assert loaded.dims == TINY
    assert_same_outputs(loaded, model)
    assert loaded.lm_head.weight is loaded.backbone.embedding.weight
    assert load_checkpoint(folder, TINY, dtype=torch.float64, kernel="naive").head_weight().dtype == torch.float64


@pytest.mark.parametrize("name", [*ARCHITECTURES, page_example.NAME])
def test_every_architecture_comes_back_bit_equal(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page_example.add_page_example(monkeypatch)
    model = random_model(name, torch.float32)
    save_checkpoint(model, model.dims, tmp_path / "base", notes={"made_by": "a test"})
    check_checkpoint(tmp_path / "base", model.dims)
    loaded = load_checkpoint(tmp_path / "base")
    assert loaded.dims == model.dims
    found, right = loaded.state_dict(), model.state_dict()
    assert found.keys() == right.keys()
    assert all(torch.equal(found[key], right[key]) for key in right)
    assert_same_outputs(loaded, model)


def test_folder_holds_two_files_and_each_parameter_once(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert [path.name for path in folder.parent.iterdir()] == ["base"]
    assert sum(torch.Size(shape).numel() for shape in read_header(folder / "model.safetensors").values()) == (
        TINY.parameters()
    )


def test_saving_again_replaces_the_folder(folder: Path) -> None:
    other = Mamba2LanguageModel(TINY, seed=9)
    before = content_hash(folder)
    save_checkpoint(other, TINY, folder, notes={"recipe": "second"})
    assert content_hash(folder) != before
    assert json.loads((folder / "config.json").read_text())["initial_state_sweeps"]["recipe"] == "second"
    assert_same_outputs(load_checkpoint(folder), other)
    assert [path.name for path in folder.parent.iterdir()] == ["base"]


def test_hash_follows_the_content_and_not_the_place(model: Mamba2LanguageModel, folder: Path, tmp_path: Path) -> None:
    save_checkpoint(model, TINY, tmp_path / "elsewhere")
    assert content_hash(tmp_path / "elsewhere") == content_hash(folder)
    (folder / "README.md").write_text("not part of the model")
    assert content_hash(folder) == content_hash(tmp_path / "elsewhere")
    rewrite(
        folder, lambda tensors: {name: value + (name == "backbone.norm_f.weight") for name, value in tensors.items()}
    )
    assert content_hash(folder) != content_hash(tmp_path / "elsewhere")


def test_published_layout_with_a_pickled_head_is_read(model: Mamba2LanguageModel, tmp_path: Path) -> None:
    config = config_from_dims(TINY)
    del config["initial_state_sweeps"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    check_checkpoint(tmp_path, TINY)
    assert_same_outputs(load_checkpoint(tmp_path, TINY), model)


def test_config_of_the_published_models_gives_their_dimensions() -> None:
    config = {
        "d_model": 768,
        "d_intermediate": 0,
        "n_layer": 24,
        "vocab_size": 50277,
        "ssm_cfg": {"layer": "Mamba2"},
        "attn_layer_idx": [],
        "attn_cfg": {},
        "pad_vocab_size_multiple": 16,
        "tie_embeddings": True,
    }
    assert dims_from_config(config, "config.json") == dims("mamba2", "130m")


@pytest.mark.parametrize(
    ("architecture", "said", "multiple", "rows"),
    [
        ("mamba1", 50277, 8, 50280),
        ("mamba1", 50280, 8, 50280),
        ("mamba1", 50280, 1, 50280),
        ("mamba2", 50277, 16, 50288),
        ("mamba2", 50288, 16, 50288),
        ("mamba2", 50288, 1, 50288),
        ("mamba2", 50277, 8, 50280),
        ("mamba2", 50280, 16, 50288),
        ("mamba2", 50277, 1, 50277),
    ],
)
def test_padded_vocabularies_fit_the_tokenizer(architecture: str, said: int, multiple: int, rows: int) -> None:
    found = replace(dims(architecture, "130m", said), pad_vocab_size_multiple=multiple)
    fitted = fitted_dims(found, dims(architecture, "130m", 50277), "checkpoint")
    assert (fitted.vocab_size, fitted.vocab_rows) == (50277, rows)


@pytest.mark.parametrize("vocabulary", [256, 50254, 50280])
def test_another_tokenizer_than_the_published_one_is_refused(vocabulary: int) -> None:
    with pytest.raises(ModelError, match=f"vocabulary of 50277, but the tokenizer has {vocabulary} entries"):
        fitted_dims(dims("mamba2", "130m", 50277), dims("mamba2", "130m", vocabulary), "checkpoint")


def test_hf_names_are_read(model: Mamba2LanguageModel, folder: Path) -> None:
    config = {
        "model_type": "mamba2",
        "hidden_size": TINY.d_model,
        "num_hidden_layers": TINY.n_layer,
        "vocab_size": TINY.vocab_rows,
        "state_size": TINY.d_state,
        "head_dim": TINY.headdim,
        "n_groups": 1,
        "conv_kernel": 4,
        "expand": 2,
        "layer_norm_epsilon": 1e-5,
    }
    (folder / "config.json").write_text(json.dumps(config))
    rewrite(folder, lambda t: {name.replace("embedding.", "embeddings."): value for name, value in t.items()})
    check_checkpoint(folder, TINY)
    assert_same_outputs(load_checkpoint(folder, TINY), model)


def without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("backbone.norm_f.weight"), "lacks the tensor backbone.norm_f.weight"),
        (
            lambda t: {**t, "backbone.layers.9.norm.weight": torch.ones(16)},
            "has a tensor backbone.layers.9.norm.weight",
        ),
        (
            lambda t: {**t, "backbone.layers.1.mixer.D": torch.ones(5)},
            r"backbone.layers.1.mixer.D has shape \(5,\), but the chosen model needs \(8,\): set model.size",
        ),
        (
            lambda t: {**t, "backbone.embedding.weight": torch.ones(48, 16)},
            r"embedding.weight has shape \(48, 16\), but the chosen model needs \(32, 16\): set data.tokenizer",
        ),
    ],
    ids=["missing", "unknown", "shape", "vocabulary"],
)
def test_tensors_that_do_not_fit_are_named(folder: Path, change: Callable[[Tensors], Tensors], message: str) -> None:
    rewrite(folder, change)
    for check in (check_checkpoint, load_checkpoint):
        with pytest.raises(ModelError, match=message):
            check(folder, TINY)


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        (replace(TINY, n_layer=3), "has n_layer = 2, but the chosen model has 3: set model.size"),
        (replace(TINY, headdim=8), "has headdim = 4, but the chosen model has 8: set model.size"),
        (
            replace(TINY, vocab_size=256),
            "has a vocabulary of 19, but the tokenizer has 256 entries: set data.tokenizer",
        ),
    ],
    ids=["layers", "heads", "vocabulary"],
)
def test_a_model_of_other_dimensions_is_refused(folder: Path, expected: Mamba2Dims, message: str) -> None:
    for check in (check_checkpoint, load_checkpoint):
        with pytest.raises(ModelError, match=message):
            check(folder, expected)


def test_a_checkpoint_that_is_cut_short_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for length in (0, 5, 100, len(whole) - 1):
        path.write_bytes(whole[:length])
        for check in (check_checkpoint, load_checkpoint):
            with pytest.raises(ModelError, match="copy the checkpoint again"):
                check(folder, TINY)


def test_missing_files_are_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="holds neither model.safetensors nor pytorch_model.bin"):
        check_checkpoint(tmp_path / "empty", TINY)
    (folder / "config.json").unlink()
    for check in (check_checkpoint, load_checkpoint):
        with pytest.raises(ModelError, match=r"config.json cannot be read"):
            check(folder, TINY)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ssm_cfg": {"layer": "Mamba1"}}, "is a mamba1, but the chosen model a mamba2: set model.architecture=mamba1"),
        ({"model_type": "llama"}, r"no architecture that is known here \(llama\)"),
        ({"attn_layer_idx": [3]}, "attention or MLP layers"),
        ({"d_intermediate": 64}, "attention or MLP layers"),
    ],
)
def test_other_architectures_are_refused(folder: Path, values: dict[str, object], message: str) -> None:
    set_config(folder, **values)
    with pytest.raises(ModelError, match=message):
        check_checkpoint(folder, TINY)


def test_a_head_of_its_own_is_refused(folder: Path) -> None:
    rewrite(folder, lambda tensors: {**tensors, "lm_head.weight": torch.zeros(32, 16)})
    with pytest.raises(ModelError, match="head of its own"):
        load_checkpoint(folder, TINY)


def test_pickled_code_is_never_run(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"backbone.embedding.weight": print}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="pytorch_model.bin cannot be read"):
        load_checkpoint(folder, TINY)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rms_norm": False}, "rms_norm = False"),
        ({"ssm_cfg": {"layer": "Mamba2", "norm_before_gate": True}}, "norm_before_gate = True"),
        ({"ssm_cfg": {"layer": "Mamba2", "dt_limit": [0.0, 0.1]}}, r"dt_limit = \[0.0, 0.1\]"),
        ({"ssm_cfg": {"layer": "Mamba2", "d_ssm": 8}}, "d_ssm = 8"),
        ({"ssm_cfg": "Mamba2"}, "which is no table"),
        ({"d_model": "wide"}, "senseless dimensions"),
        ({"ssm_cfg": {"layer": "Mamba2", "headdim": 0}}, "senseless dimensions"),
    ],
)
def test_a_configuration_of_another_model_is_refused(change: dict[str, object], sentence: str) -> None:
    config = {**config_from_dims(TINY), **change}
    with pytest.raises(ModelError, match=sentence):
        dims_from_config(config, "config.json")
