"""The Ray cluster of a sweep: a private one on this machine, or a running one that `--address` names."""

import logging
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from sweeps.settings import SettingError
from workers.trainable import DRIVER_RESOURCE

PACKAGES = ("sweeps", "workers", "models", "storage")

REMOTE = {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "1800"}
"""On a cluster that must first bring machines a worker group waits longer than Train's minute."""
CONNECT_SECONDS = 5.0
PREFIX = "isweep-"
"""Of the private clusters' folders in /tmp."""
LOCK = "driver.lock"
"""Held by the driver whose cluster a folder belongs to."""

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Tune's own loggers and its Ctrl-C handler: the sweep keeps its own records and ends in its own way.
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    # The old reporter of Tune can be silenced, the new one prints every error.
    "RAY_AIR_NEW_OUTPUT": "0",
    # Ray prints what it thinks of a dead worker on standard output, among our results; the sweep says it in one line.
    "RAY_DEDUP_LOGS_SKIP_REGEX": "^",
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
                hosts_drivers=DRIVER_RESOURCE in resources,
            )
        finally:
            ray.shutdown()


@contextmanager
def _private_cluster(cpus: int) -> Iterator[None]:
    # Short, since Unix sockets below it may have 107 bytes at most.
    _remove_leftovers()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))
    lock = FileLock(folder / LOCK, timeout=0)
    lock.acquire()
    changed = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(_new_token(folder))}
    before = {name: os.environ.get(name) for name in (*changed, "RAY_ADDRESS", "RAY_AUTH_TOKEN")}
    for name in before:
        os.environ.pop(name, None)
    os.environ.update(changed)
    import ray

    try:
        _start(
            address="local",
            num_cpus=cpus,
            resources={DRIVER_RESOURCE: 64},
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
        lock.release()
        shutil.rmtree(folder, ignore_errors=True)


class RayStartError(RuntimeError):
    """Ray did not come up on this machine: one sentence for the user."""


def _start(**options: Any) -> None:
    import ray

    try:
        ray.init(**options)
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise RayStartError(
            f"Ray did not start on this machine ({reason}); nothing is lost: when the machine is less busy, the same "
            "command goes on"
        ) from error


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
            runtime_env={**_runtime_env(REMOTE), "py_modules": [str(root / package) for package in PACKAGES]},
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


def _runtime_env(more: dict[str, str] | None = None) -> dict[str, Any]:
    return {"env_vars": {**QUIET, **(more or {})}, "worker_process_setup_hook": pin_address}


def pin_address() -> None:
    """Set RAY_ADDRESS in a worker: with two clusters on one machine, Train's cleaner would not know which is meant."""
    import ray

    os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address


def _remove_leftovers() -> None:
    """Remove the folders of drivers that were killed: those with a lock file of ours that nobody holds any more."""
    for folder in Path("/tmp").glob(f"{PREFIX}*"):
        if not (folder / LOCK).is_file() or folder.stat().st_uid != os.getuid():
            continue
        with suppress(Timeout), FileLock(folder / LOCK, timeout=0):
            shutil.rmtree(folder, ignore_errors=True)


def _new_token(folder: Path) -> Path:
    path = folder / "token"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32))
    return path
