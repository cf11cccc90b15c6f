from pathlib import Path

import pytest

from sweeps.machine import available_memory, machine_gpus, this_machine

MEMINFO = "MemTotal:       8000000 kB\nMemFree:        1000000 kB\nMemAvailable:   6000000 kB\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def group(place: str, limit: str, used: int, reclaimable: int = 0) -> dict[str, str]:
    return {
        f"{place}/memory.max": f"{limit}\n",
        f"{place}/memory.current": f"{used}\n",
        f"{place}/memory.stat": f"anon 1\ninactive_file {reclaimable}\n",
    }


def test_without_a_limit_the_kernel_says_what_is_available(tmp_path: Path) -> None:
    assert available_memory(write(tmp_path, {"proc/meminfo": MEMINFO})) == 6_000_000 * 1024


def test_the_narrowest_of_the_groups_above_counts(tmp_path: Path) -> None:
    files = {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/user/job\n"}
    files |= group("sys/fs/cgroup/user/job", "max", 500)
    files |= group("sys/fs/cgroup/user", "2000000", 1_500_000, reclaimable=300_000)
    assert available_memory(write(tmp_path, files)) == 800_000


def test_in_a_container_the_folder_itself_is_the_group(tmp_path: Path) -> None:
    files = {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/docker/4f1a\n"} | group("sys/fs/cgroup", "900", 400)
    assert available_memory(write(tmp_path, files)) == 500


def test_limits_of_version_1_count_too(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "5:cpu:/job\n4:memory:/job\n",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "3000",
        "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "1000",
        "sys/fs/cgroup/memory/job/memory.stat": "cache 7\ntotal_inactive_file 100\n",
    }
    assert available_memory(write(tmp_path, files)) == 2100


def test_a_group_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    files = {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/\n"} | group("sys/fs/cgroup", "100", 400)
    assert available_memory(write(tmp_path, files)) == 0


@pytest.mark.parametrize(("visible", "expected"), [(None, 2), ("0", 1), ("", 0), ("-1", 0), ("0,1,2,3", 2)])
def test_gpus_are_those_that_exist_and_are_visible(
    visible: str | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / "proc/driver/nvidia/gpus" / name).mkdir(parents=True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine_gpus(tmp_path) == expected


def test_this_machine_has_something_to_offer() -> None:
    machine = this_machine()
    assert machine.cpus >= 1 and machine.memory > 2**20
