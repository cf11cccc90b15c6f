"""What this machine offers a sweep, read from the kernel's own files: CPUs, GPUs, memory.

Limits of control groups (containers, Slurm, systemd) count. Imports no torch, ray or psutil.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    """What may be used of it now."""

    cpus: int
    gpus: int
    memory: int
    """Bytes."""


def this_machine() -> Machine:
    """The machine that this process runs on."""
    return Machine(machine_cpus(), machine_gpus(), available_memory())


def machine_cpus() -> int:
    """CPUs that this process may use, by affinity and by the quota of its control group."""
    cpus = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cpus = max(1, min(cpus, int(quota) // int(period)))
    return cpus


def machine_gpus(root: Path = Path("/")) -> int:
    """GPUs that the NVIDIA driver shows and CUDA_VISIBLE_DEVICES leaves."""
    there = len(list(root.glob("proc/driver/nvidia/gpus/*")))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return there
    return min(there, len([name for name in visible.split(",") if name.strip() not in ("", "-1")]))


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that new processes may take without swapping: the kernel's estimate, or less by a group's limit."""
    lines = (root / "proc/meminfo").read_text().splitlines()
    kibibytes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return max(0, min([kibibytes["MemAvailable"] * 1024, *_group_rooms(root)]))


def _group_rooms(root: Path) -> Iterator[int]:
    """Bytes left under the memory limit of each control group that this process is in, from its own upwards."""
    groups = root / "sys/fs/cgroup"
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":  # version 2
                names, folder = ("memory.max", "memory.current", "inactive_file"), groups
            elif "memory" in controllers.split(","):
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
                folder = groups / "memory"
            else:
                continue
            own = folder / path.lstrip("/")
            # In a container the path may be that of the host, while the folder shows the container's own group.
            for group in {folder, own, *(up for up in own.parents if up.is_relative_to(folder))}:
                with suppress(OSError, ValueError):
                    yield _room(group, *names)


def _room(group: Path, limit: str, usage: str, reclaimable: str) -> int:
    # Cached file pages count as usage, but give way. No limit is the word `max`: a ValueError that the caller expects.
    stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    used = int((group / usage).read_text()) - int(stat.get(reclaimable, 0))
    return int((group / limit).read_text()) - used
