import subprocess
import sys

import pytest

from models.errors import ModelError
from models.layout import tensor_shapes
from models.mamba2 import Mamba2LanguageModel
from models.registry import ARCHITECTURES, build_model
from models.settings import ModelSettings
from models.sizes import ARCHITECTURE_NAMES, SIZES, Mamba2Dims, check_model_names, dims
from tests.models.makers import TINY


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


@pytest.mark.parametrize("size", [TINY, dims("mamba2", "demo")], ids=["tiny", "demo"])
def test_counts_and_shapes_equal_the_built_model(size: Mamba2Dims) -> None:
    model = Mamba2LanguageModel(size, seed=0)
    assert sum(parameter.numel() for parameter in model.parameters()) == size.parameters()
    built = {name: tuple(value.shape) for name, value in model.state_dict().items() if name != "lm_head.weight"}
    assert built == tensor_shapes(size)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("mamba3", "demo", "chunked"), "model.architecture = 'mamba3' is unknown: did you mean 'mamba2'?"),
        (("mamba2", "370", "chunked"), "model.size = '370' is unknown: did you mean '370m'?"),
        (("mamba2", "demo", "chunk"), "model.scan = 'chunk' is unknown: did you mean 'chunked'?"),
        (("transformer", "demo", "chunked"), "model.architecture = 'transformer' is unknown: there is mamba2."),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(names: tuple[str, str, str], message: str) -> None:
    with pytest.raises(ModelError) as error:
        check_model_names(*names)
    assert str(error.value) == message


def test_dimensions_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ModelError, match="multiple of headdim = 5"):
        Mamba2Dims(d_model=16, n_layer=1, vocab_size=8, headdim=5)


def test_every_named_architecture_can_be_built() -> None:
    assert tuple(ARCHITECTURES) == ARCHITECTURE_NAMES == tuple(SIZES)
    model = build_model(ModelSettings(), vocab_size=256, seed=3)
    assert model.vocab_size == 256


def test_light_modules_import_no_torch() -> None:
    modules = "models, models.settings, models.sizes, models.layout, models.content"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
