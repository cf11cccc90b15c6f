"""What all tests share: a quiet, offline environment, one private Ray cluster, and `--fail-on-skip`."""

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import psutil
import pytest

_ENVIRONMENT = {
    "DS_ACCELERATOR": "cpu",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "RAY_AUTH_MODE": "token",
}
_SHUTDOWN_S = 20.0

# A busy machine must not fail a test: hypothesis would give each example 200 ms.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

_saved_environment = pytest.StashKey[dict[str, str | None]]()
_token_folder = pytest.StashKey[str]()
_skipped = pytest.StashKey[list[str]]()


@dataclass(frozen=True)
class RayCluster:
    """The private cluster of this test session. The driver is connected already; every worker has RAY_ADDRESS set."""

    address: str
    """Address of the head, as host:port."""
    temp_dir: Path
    """Ray's folder of this cluster; it names the cluster in its processes' command lines."""

    def processes(self) -> list[psutil.Process]:
        """The processes whose command line names `temp_dir`, and all they started; never this process."""
        found: dict[int, psutil.Process] = {}
        for process in psutil.process_iter():
            try:
                if process.pid != os.getpid() and str(self.temp_dir) in " ".join(process.cmdline()):
                    found |= {each.pid: each for each in (process, *process.children(recursive=True))}
            except psutil.Error:
                continue
        return list(found.values())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fail-on-skip", action="store_true", help="a skipped test fails the run and is listed")


def pytest_configure(config: pytest.Config) -> None:
    # Set before any test module is imported: some libraries read their environment once, at import.
    folder = tempfile.mkdtemp(prefix="rt-token-", dir="/tmp")
    token = Path(folder, "token")
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    environment = _ENVIRONMENT | {"RAY_AUTH_TOKEN_PATH": str(token)}
    config.stash[_saved_environment] = {name: os.environ.get(name) for name in (*environment, "RAY_ADDRESS")}
    config.stash[_token_folder] = folder
    config.stash[_skipped] = []
    os.environ.update(environment)
    os.environ.pop("RAY_ADDRESS", None)


def pytest_unconfigure(config: pytest.Config) -> None:
    for name, value in config.stash.get(_saved_environment, {}).items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if _token_folder in config.stash:
        shutil.rmtree(config.stash[_token_folder], ignore_errors=True)


class _SkipGuard:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._config.stash[_skipped].append(f"{report.nodeid}: {_reason(report)}")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._config.stash[_skipped].append(f"{report.nodeid}: {_reason(report)}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._config.stash[_skipped] and session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self._config.stash[_skipped]:
            terminalreporter.write_line(f"SKIPPED, not allowed by --fail-on-skip: {line}", red=True)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    return str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)


def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.getoption("--fail-on-skip"):
        session.config.pluginmanager.register(_SkipGuard(session.config), "skip-guard")


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    """A cluster of 4 CPUs that no other Ray on this machine can see or disturb; fails if it leaves a process behind."""
    import ray

    def pin_address() -> None:
        # A second Ray on the machine would otherwise make "the" cluster ambiguous for code that looks it up.
        import os

        import ray

        os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address

    temp_dir = Path(tempfile.mkdtemp(prefix="rt-", dir="/tmp"))  # short: socket paths are limited to 107 bytes
    ray.init(
        address="local",
        num_cpus=4,
        resources={"sweep_driver": 4},
        include_dashboard=True,
        dashboard_host="127.0.0.1",
        dashboard_port=0,
        log_to_driver=False,
        _temp_dir=str(temp_dir),
        runtime_env={"worker_process_setup_hook": pin_address},
    )
    cluster = RayCluster(ray.get_runtime_context().gcs_address, temp_dir)
    os.environ["RAY_ADDRESS"] = cluster.address
    try:
        yield cluster
    finally:
        started = cluster.processes()
        ray.shutdown()
        os.environ.pop("RAY_ADDRESS", None)
        left = end_processes([*started, *cluster.processes()])
        shutil.rmtree(temp_dir, ignore_errors=True)
        assert not left, f"the Ray cluster left processes behind: {left}"


def end_processes(processes: list[psutil.Process]) -> list[str]:
    """Wait for `processes` to end, then kill the rest, each by its own id; returns what had to be killed."""
    deadline = time.monotonic() + _SHUTDOWN_S
    alive = list(set(processes))
    while alive and time.monotonic() < deadline:
        _, alive = psutil.wait_procs(alive, timeout=1.0)
        alive = [process for process in alive if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    names = []
    for process in alive:
        try:
            names.append(f"{process.pid} {' '.join(process.cmdline())[:120]}")
            process.kill()
        except psutil.NoSuchProcess:
            continue
    return names
