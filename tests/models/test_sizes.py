import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from models.architecture import ModelDims
from models.errors import ModelError
from models.mamba2.dims import Mamba2Dims
from models.registry import ARCHITECTURES, architecture, dims, model_of
from models.settings import ModelSettings


def test_demo_has_the_parameters_and_state_of_the_design() -> None:
    demo = dims("mamba2", "demo", vocab_size=256)
    assert demo.parameters() == 271_072
    assert demo.state_elements() == {"recurrent": 2 * 16 * 16 * 64, "conv": 2 * 384 * 3}
    assert demo.state_bytes() == 4 * (32_768 + 2_304)
    assert demo.state_bytes(activation_bytes=2) == 4 * 32_768 + 2 * 2_304


@pytest.mark.parametrize(
    ("size", "millions"), [("130m", 128.99), ("370m", 368.35), ("780m", 780.26), ("1.3b", 1343.96), ("2.7b", 2702.6)]
)
def test_published_sizes_have_the_published_parameter_counts(size: str, millions: float) -> None:
    assert dims("mamba2", size).parameters() / 1e6 == pytest.approx(millions, rel=2e-3)


def test_published_vocabulary_is_padded_to_50288_rows() -> None:
    assert dims("mamba2", "130m").vocab_rows == 50288
    assert dims("mamba2", "130m", vocab_size=50288).vocab_rows == 50288


def test_state_of_the_1_3b_model_takes_100_megabytes() -> None:
    recurrent = dims("mamba2", "1.3b").state_elements()["recurrent"]
    assert 4 * recurrent == 48 * 64 * 64 * 128 * 4 == pytest.approx(100e6, rel=0.01)


def all_sizes() -> list[ModelDims]:
    return [size for name in ARCHITECTURES for size in architecture(name).sizes.values()]


@pytest.mark.parametrize("size", all_sizes(), ids=lambda size: f"{size.ARCHITECTURE}-{size.parameters() / 1e6:.0f}m")
def test_counts_names_and_shapes_equal_the_model_built_on_the_meta_device(size: ModelDims) -> None:
    with torch.device("meta"):
        model = model_of(replace(size, n_layer=min(size.n_layer, 3)), seed=0)
    size = model.dims
    built = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert sum(parameter.numel() for parameter in model.parameters()) == size.parameters()
    assert built == {**size.tensor_shapes(), size.HEAD: (size.vocab_rows, size.d_model)}


@pytest.mark.parametrize(
    ("name", "size", "millions"),
    [
        ("mamba1", "130m", 129.14),
        ("mamba1", "370m", 371.52),
        ("mamba1", "790m", 793.20),
        ("mamba1", "1.4b", 1372.18),
        ("mamba1", "2.8b", 2768.35),
    ],
)
def test_parameter_counts_of_published_mamba1(name: str, size: str, millions: float) -> None:
    assert dims(name, size).parameters() / 1e6 == pytest.approx(millions, rel=2e-3)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("mamba3", "demo", "chunked"), "model.architecture = 'mamba3' is unknown: did you mean 'mamba2'?"),
        (("mamba2", "370", "chunked"), "model.size = '370' is unknown: did you mean '370m'?"),
        (("mamba2", "demo", "chunk"), "model.kernel = 'chunk' is unknown: did you mean 'chunked'?"),
        (
            ("transformer", "demo", "chunked"),
            "model.architecture = 'transformer' is unknown: there is mamba1, mamba2, gla, rwkv6.",
        ),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(names: tuple[str, str, str], message: str) -> None:
    with pytest.raises(ModelError) as error:
        ModelSettings(architecture=names[0], size=names[1], kernel=names[2])
    assert str(error.value) == message


def test_dimensions_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ModelError, match="multiple of headdim = 5"):
        Mamba2Dims(d_model=16, n_layer=1, vocab_size=8, headdim=5)


def test_light_modules_import_no_torch() -> None:
    modules = ", ".join(["models.content", "models.layout", *ARCHITECTURES.values()])
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
