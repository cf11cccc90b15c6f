"""What the trials of a sweep need together, against what this machine has: checked before anything starts."""

from dataclasses import dataclass

from sweeps.machine import Machine
from sweeps.planned import PlannedTrial, SweepPlan
from sweeps.settings import SettingError


@dataclass(frozen=True)
class BankNeeds:
    """The most that the state banks of the trials that run at once hold, in bytes."""

    at_once: int
    """Trials that run at once."""
    memory: int
    """Of the shards and, where workers run on CPUs, of what these keep beside them (on GPUs it is in their memory)."""
    largest: PlannedTrial | None
    """The trial whose bank is the largest; None when no trial has one."""


def bank_needs(plan: SweepPlan, machine: Machine) -> BankNeeds:
    """What the banks need when the most demanding trials run at the same time."""
    at_once = plan.concurrency(machine.cpus, machine.gpus)
    on_gpus = machine.gpus > 0 and plan.settings.trial.device != "cpu"
    banks = [(trial, bank) for trial in plan.possible if (bank := trial.bank) is not None]
    held = [bank.bank_bytes if on_gpus else bank.held_bytes for _, bank in banks]
    return BankNeeds(
        at_once=at_once,
        memory=sum(sorted(held, reverse=True)[:at_once]),
        largest=banks[held.index(max(held))][0] if banks else None,
    )


def check_resources(plan: SweepPlan, machine: Machine) -> None:
    """Raise SettingError when a trial asks for more CPUs, or the trials' banks for more memory, than there is."""
    for trial in plan.possible:
        if trial.cpus > machine.cpus:
            settings = trial.config.trial
            raise SettingError(
                f"{trial.label} asks for {trial.cpus} CPUs (trial.workers={settings.workers} x "
                f"trial.threads={settings.threads}), but this machine has {machine.cpus}; "
                "lower trial.workers or trial.threads"
            )
    needs = bank_needs(plan, machine)
    if needs.largest is not None and needs.memory > machine.memory:
        raise SettingError(_too_large(needs, needs.largest, machine))


def _too_large(needs: BankNeeds, largest: PlannedTrial, machine: Machine) -> str:
    bank, settings = largest.bank, largest.config
    assert bank is not None
    smaller = f"trial.rows (now {settings.trial.rows})"
    if "reservoir" in settings.bank_content:
        smaller = f"intervention.capacity (now {settings.intervention.capacity}) or {smaller}"
    fewer = f", raise trial.threads so that fewer than {needs.at_once} trials run at once" if needs.at_once > 1 else ""
    precision = ", write bank.wire_dtype=bf16" if settings.bank.wire_dtype == "fp32" else ""
    return (
        f"the state banks, {needs.at_once} at once, hold up to {size(needs.memory)}, but this machine has "
        f"{size(machine.memory)} to spare; the largest is that of {largest.label}, with {size(bank.row_bytes)} a row: "
        f"lower {smaller}{fewer}{precision}, or send the sweep to a cluster with --address"
    )


def size(number: int) -> str:
    """Bytes as text: `131072` is `128 KiB`."""
    value, unit = float(number), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit in ("B", "KiB") else f"{value:.1f} {unit}"
