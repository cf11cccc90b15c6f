"""The Ray cluster of a sweep: a private one on this machine, or a running one that `--address` names."""

import getpass
import logging
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeps.settings import SettingError

PACKAGES = ("sweeps", "workers", "models", "storage")

CONNECT_SECONDS = 5.0

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Tune's own loggers and its Ctrl-C handler: the sweep keeps its own records and ends in its own way.
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    # The old reporter of Tune can be silenced, the new one prints every error.
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1",
    "DO_NOT_TRACK": "true",
    # Nothing here is compiled, and DeepSpeed's first step would otherwise import the whole compiler.
    "TORCHDYNAMO_DISABLE": "1",
}
"""Set in the driver before Ray is imported, and in every worker."""


@dataclass(frozen=True)
class RaySession:
    """What a sweep may use of a cluster."""

    cpus: int
    gpus: int
    """GPUs of the machines that are there now; an autoscaler may bring more."""
    is_private: bool
    """Whether it is this command's own cluster on this machine."""
    hosts_drivers: bool
    """Whether a node offers the resource that drivers of worker groups need."""


@contextmanager
def ray_session(address: str | None, cpus: int) -> Iterator[RaySession]:
    """Join the cluster at `address`, or start a private one with `cpus` CPUs that ends with the block.

    Raises SettingError when the cluster cannot be reached.
    """
    os.environ.update(QUIET)
    with _remote_cluster(address) if address else _private_cluster(cpus):
        import ray

        logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
        try:
            resources = ray.cluster_resources()
            yield RaySession(
                cpus=int(resources.get("CPU", 0)),
                gpus=int(resources.get("GPU", 0)),
                is_private=address is None,
                hosts_drivers="sweep_driver" in resources,
            )
        finally:
            ray.shutdown()


@contextmanager
def _private_cluster(cpus: int) -> Iterator[None]:
    # Short, since Unix sockets below it may have 107 bytes at most.
    _remove_leftovers()
    folder = Path(tempfile.mkdtemp(prefix=f"sweep-{os.getpid()}-", dir="/tmp"))
    changed = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(_new_token(folder))}
    before = {name: os.environ.get(name) for name in (*changed, "RAY_ADDRESS", "RAY_AUTH_TOKEN")}
    for name in before:
        os.environ.pop(name, None)
    os.environ.update(changed)
    import ray

    try:
        ray.init(
            address="local",
            num_cpus=cpus,
            resources={"sweep_driver": 64},
            include_dashboard=True,
            dashboard_host="127.0.0.1",
            dashboard_port=0,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=str(folder),
            _node_ip_address="127.0.0.1",
            runtime_env=_runtime_env(),
        )
        yield
    finally:
        ray.shutdown()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _remote_cluster(address: str) -> Iterator[None]:
    import ray

    if address.startswith("ray://"):
        raise SettingError(
            f"the address {address} is a Ray Client address, through which states must not travel; "
            "run this command on the head node and write its address, for example --address auto"
        )
    _check_reachable(address)
    root = Path(__file__).resolve().parent.parent
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={**_runtime_env(), "py_modules": [str(root / package) for package in PACKAGES]},
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise SettingError(f"there is no Ray cluster to join at {address}: {reason}") from error
    yield


def _check_reachable(address: str) -> None:
    """Raise SettingError at once when nothing listens at host:port; Ray itself would try for minutes."""
    host, separator, port = address.rpartition(":")
    if address == "auto":
        return
    if not separator or not port.isdigit():
        raise SettingError(f"the address {address!r} is no cluster; write host:port or auto")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise SettingError(f"there is no Ray cluster to join at {address}: {error.strerror or error}") from error


def _runtime_env() -> dict[str, Any]:
    return {"env_vars": QUIET, "worker_process_setup_hook": pin_address}


def pin_address() -> None:
    """Set RAY_ADDRESS in a worker: with two clusters on one machine, Train's cleaner would not know which is meant."""
    import ray

    os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address


def _remove_leftovers() -> None:
    """Remove the folders of drivers that were killed and could not do so themselves."""
    for folder in Path("/tmp").glob("sweep-*-*"):
        pid = folder.name.split("-")[1]
        is_mine = folder.is_dir() and folder.owner() == getpass.getuser()
        if pid.isdigit() and is_mine and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def _new_token(folder: Path) -> Path:
    path = folder / "token"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32))
    return path
