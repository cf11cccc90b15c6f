import pytest

from models import kernels
from sweeps.kernel_check import check_kernels, lacking_kernels
from sweeps.machine import Machine
from sweeps.plan import make_plan
from sweeps.planned import SweepPlan
from sweeps.settings import SettingError

LAPTOP, SERVER = Machine(cpus=2, gpus=0, memory=2**35), Machine(cpus=16, gpus=1, memory=2**37)


def plan(*assignments: str) -> SweepPlan:
    return make_plan("interventions", "demo", ["base.checkpoint=fresh", *assignments], 1)


def test_chunked_and_naive_kernels_lack_nothing() -> None:
    assert lacking_kernels(plan(), LAPTOP) is None
    assert lacking_kernels(plan("model.kernel=naive", "trial.device=cuda"), LAPTOP) is None


def test_fused_kernels_without_packages_or_gpu_are_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kernels.MODULES, "mamba-ssm", "no_such_package")
    monkeypatch.setitem(kernels.MODULES, "triton", "json")
    monkeypatch.setitem(kernels.MODULES, "causal-conv1d", "json")
    with pytest.raises(SettingError) as caught:
        check_kernels(plan("model.kernel=fused"), LAPTOP)
    assert str(caught.value) == (
        "model.kernel is 'fused', which for mamba2 needs mamba-ssm, which is not installed here, and a CUDA GPU, which "
        "this machine does not have: install the extra `gpu` of this project on a machine with a GPU, or write "
        "model.kernel=chunked"
    )
    assert lacking_kernels(plan("trial.device=cuda"), SERVER) == (
        "trial.device is 'cuda', so that mamba2 runs fused kernels, which need mamba-ssm, which is not installed here: "
        "send the sweep to a cluster with --address, or write trial.device=cpu"
    )


def test_fused_kernels_with_all_they_need_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in kernels.MODULES:
        monkeypatch.setitem(kernels.MODULES, name, "json")
    assert lacking_kernels(plan("model.kernel=fused"), SERVER) is None
