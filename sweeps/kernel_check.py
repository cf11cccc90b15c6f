"""Whether the fused kernels that a sweep's trials run are on this machine; imports no torch."""

from models.errors import ModelError
from models.kernels import FUSED, INSTALL
from models.registry import fused_lacks_here
from sweeps.machine import Machine
from sweeps.planned import SweepPlan
from sweeps.settings import SettingError
from workers.settings import TrialConfig


def check_kernels(plan: SweepPlan, machine: Machine) -> None:
    """Raise SettingError that says what the fused kernels of some trial lack on this machine."""
    if (lacking := lacking_kernels(plan, machine)) is not None:
        raise SettingError(lacking)


def lacking_kernels(plan: SweepPlan, machine: Machine) -> str | None:
    """What is missing, in a sentence; None where every trial's kernel is here."""
    sentences = (_lacking(trial.config, machine) for trial in plan.possible if trial.config.kernel == FUSED)
    return next((sentence for sentence in sentences if sentence), None)


def _lacking(config: TrialConfig, machine: Machine) -> str:
    name = config.model.architecture
    try:
        lacking = fused_lacks_here(name, machine.gpus)
    except ModelError as error:
        return str(error)
    if not lacking:
        return ""
    if config.model.kernel == FUSED:
        return f"model.kernel is 'fused', which for {name} needs {lacking}: {INSTALL}"
    return (
        f"trial.device is 'cuda', so that {name} runs fused kernels, which need {lacking}: send the sweep to a cluster "
        "with --address, or write trial.device=cpu"
    )
