"""A sweep sent to a cluster that is running already, as on GPUs: code by runtime_env, token authentication."""

import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cli.command_line import environment, small_sweep
from tests.cli.stores import children

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(900)]


@pytest.fixture
def running_cluster() -> Iterator[dict[str, str]]:
    """A head of its own with 2 CPUs; gives the environment in which a driver may join it, with its ADDRESS."""
    folder = Path(tempfile.mkdtemp(prefix="rh-", dir="/tmp"))
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    ports = [_free_port() for _ in range(2)]
    inside = {**environment(), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    # The cluster must get its code from the driver.
    head_environment = {name: value for name, value in inside.items() if name != "PYTHONPATH"}
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={ports[0]}"]
    command += ["--node-ip-address=127.0.0.1", "--num-cpus=2", f"--temp-dir={folder / 'ray'}", "--disable-usage-stats"]
    command += ["--dashboard-host=127.0.0.1", f"--dashboard-port={ports[1]}"]
    log = (folder / "head.log").open("w")
    head = subprocess.Popen(command, env=head_environment, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait_for_port(ports[0], head)
        yield {**inside, "ADDRESS": f"127.0.0.1:{ports[0]}"}
    finally:
        family = [psutil.Process(head.pid), *psutil.Process(head.pid).children(recursive=True)]
        for process in family:
            if process.is_running():
                process.terminate()
        _, stubborn = psutil.wait_procs(family, timeout=20)
        for process in stubborn:
            process.kill()
        log.close()
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for_port(port: int, head: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        assert head.poll() is None, "the head did not start"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.5)
    raise AssertionError("the head did not open its port")


@pytest.mark.parametrize("way", ["flag", "environment"])
def test_a_sweep_runs_on_the_cluster_that_is_named(way: str, running_cluster: dict[str, str], tmp_path: Path) -> None:
    variables = dict(running_cluster)
    address = variables.pop("ADDRESS")
    flags = ["--address", address] if way == "flag" else []
    if way == "environment":
        variables["RAY_ADDRESS"] = address
    done = subprocess.run(
        [sys.executable, "-m", "sweeps.run", *small_sweep("--set", "sweep.values=0.1", *flags)],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert set(children(tmp_path)) == {"base", "zero", "random_noise 0.1", "state_passing"}
