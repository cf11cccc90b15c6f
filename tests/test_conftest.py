import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_CONFTEST = Path(__file__).parent / "conftest.py"


SKIPPING = """
import pytest

def test_good(): pass

def test_skips(): pytest.skip("no browser")

@pytest.mark.xfail
def test_expected(): assert False
"""
SKIPPED_AT_IMPORT = "import pytest\npytest.skip('no ray', allow_module_level=True)\n"


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(_CONFTEST.read_text())
    (folder / "test_skipping.py").write_text(SKIPPING)
    (folder / "test_skipped_at_import.py").write_text(SKIPPED_AT_IMPORT)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(folder)]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


def test_skips_fail_the_run_and_are_listed_when_asked(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "--fail-on-skip")
    listed = [line for line in done.stdout.splitlines() if "not allowed by --fail-on-skip" in line]
    assert done.returncode == 1
    assert len(listed) == 2, "an expected failure is no skip"
    assert any("test_skips" in line and "no browser" in line for line in listed)
    assert any("test_skipped_at_import" in line and "no ray" in line for line in listed)


def test_skips_are_allowed_by_default(tmp_path: Path) -> None:
    assert run_pytest(tmp_path).returncode == 0


def test_the_session_is_offline_and_its_token_is_private() -> None:
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert Path(os.environ["RAY_AUTH_TOKEN_PATH"]).stat().st_mode & 0o777 == 0o600


@pytest.mark.ray
def test_workers_know_the_address_of_their_own_cluster(ray_cluster: Any) -> None:
    import ray

    @ray.remote(num_cpus=0)
    def address() -> str | None:
        return os.environ.get("RAY_ADDRESS")

    assert ray.get(address.remote(), timeout=60) == ray_cluster.address


@pytest.mark.ray
def test_the_cluster_knows_its_own_processes(ray_cluster: Any) -> None:
    names = [" ".join(process.cmdline()) for process in ray_cluster.processes()]
    assert any("raylet" in name for name in names)
    assert any("gcs_server" in name for name in names)
