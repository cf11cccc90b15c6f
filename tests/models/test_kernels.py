"""Which kernel a model runs, and what is said where it cannot: decided by settings and package lists, without a GPU."""

import subprocess
import sys

import pytest

from models import kernels, registry
from models.errors import ModelError
from models.kernels import MODULES, check_kernel_device, fused_lacks, kernel_versions, resolved_kernel
from models.registry import ARCHITECTURES, architecture, kernel_of, kernel_record, model_of
from models.settings import ModelSettings
from tests.models import page_example


@pytest.mark.parametrize(
    ("kernel", "device", "runs"),
    [
        ("auto", "cuda", "fused"),
        ("auto", "cpu", "chunked"),
        # Whether there is a GPU would be the machine's say, and a trial must not depend on it.
        ("auto", "auto", "chunked"),
        ("naive", "cuda", "naive"),
        ("chunked", "cuda", "chunked"),
        ("fused", "auto", "fused"),
    ],
)
def test_auto_is_resolved_by_settings_alone(kernel: str, device: str, runs: str) -> None:
    assert kernel_of(ModelSettings(kernel=kernel), device) == runs


def test_an_architecture_without_a_fused_scan_runs_the_chunked_one(monkeypatch: pytest.MonkeyPatch) -> None:
    page_example.add_page_example(monkeypatch)
    assert kernel_of(ModelSettings(architecture=page_example.NAME), "cuda") == "chunked"
    with pytest.raises(ModelError, match="retention has no fused scan: write model.kernel=chunked"):
        registry.fused_lacks_here(page_example.NAME)


def test_every_published_architecture_says_what_its_fused_scan_needs() -> None:
    for name in ARCHITECTURES:
        assert set(architecture(name).fused_packages) <= set(MODULES)
        assert resolved_kernel("auto", "cuda", architecture(name).fused_packages) == "fused"


def test_fused_on_a_cpu_is_refused_whatever_is_installed() -> None:
    with pytest.raises(ModelError, match=r"trial.device is 'cpu': write trial.device=cuda, or model.kernel=chunked"):
        check_kernel_device("fused", "cpu")
    check_kernel_device("auto", "cpu")


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "MODULES", {"torch": "torch", "one": "no_such_one", "two": "no_such_two"})
    assert fused_lacks(["torch"], gpus=1) == ""
    assert fused_lacks(["torch", "one"]) == "one, which is not installed here"
    assert fused_lacks(["one", "two"], gpus=0) == (
        "one and two, which are not installed here, and a CUDA GPU, which this machine does not have"
    )
    assert fused_lacks([], gpus=0) == "a CUDA GPU, which this machine does not have"


def test_a_fused_model_is_not_built_without_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kernels.MODULES, "triton", "no_such_triton")
    with pytest.raises(ModelError, match=r"the fused scan of gla needs triton, which is not installed here: install"):
        model_of(registry.dims("gla", "tiny"), seed=0, kernel="fused")


def test_versions_are_recorded_for_fused_scans_alone() -> None:
    assert kernel_record("mamba2", "chunked") == {}
    assert set(kernel_record("mamba2", "fused")) == {"triton", "mamba-ssm", "causal-conv1d"}
    assert kernel_versions(["torch", "no-such-package"]) == {"torch": torch_version(), "no-such-package": "unknown"}


def torch_version() -> str:
    import torch

    return torch.__version__


def test_looking_for_packages_imports_none_of_them() -> None:
    code = (
        "import sys; from models.registry import fused_lacks_here, ARCHITECTURES\n"
        "for name in ARCHITECTURES: fused_lacks_here(name, gpus=0)\n"
        "sys.exit(bool({'torch', 'triton', 'fla', 'mamba_ssm', 'causal_conv1d'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
