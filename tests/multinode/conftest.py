"""Three Ray nodes on one machine: a head without CPUs, where the tests run, and `left` and `right` with one CPU each.

In a pytest process of its own: a process can be connected to one cluster only. The fixtures of the bank's contract
suite are used as they are; only where the shards sit differs.
"""

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from storage.bank.contract import StateBank
from storage.bank.layout import BankLayout
from tests.conftest import RayCluster, end_processes
from tests.storage.bank.conftest import bank, open_bank, sharded
from tests.workers.conftest import small_trial, token_caches

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

__all__ = ["bank", "open_bank", "sharded", "small_trial", "token_caches"]

NAMES = ("head", "left", "right")


@dataclass(frozen=True)
class Nodes(RayCluster):
    """The cluster, and the ids of its nodes in the order of NAMES."""

    nodes: "Cluster"
    ids: tuple[str, ...]


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Nodes]:
    """The running cluster; fails if it leaves a process behind."""
    import ray
    from ray.cluster_utils import Cluster

    from sweeps.ray_session import pin_address

    assert not ray.is_initialized(), "tests/multinode needs a pytest process of its own, see the Makefile"
    temp_dir = Path(tempfile.mkdtemp(prefix="rm-", dir="/tmp"))  # short: socket paths are limited to 107 bytes
    # A Cluster writes its address into Ray's temporary folder, where every later `ray.init` would find it.
    os.environ["RAY_TMPDIR"] = str(temp_dir)
    nodes = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 0,
            "resources": {"sweep_driver": 4},
            "include_dashboard": True,
            "dashboard_host": "127.0.0.1",
            "dashboard_port": 0,
        },
    )
    try:
        for name in NAMES[1:]:
            nodes.add_node(num_cpus=1, resources={name: 1})
        hook = {"worker_process_setup_hook": pin_address}
        ray.init(address=nodes.address, log_to_driver=False, runtime_env=hook)
        os.environ["RAY_ADDRESS"] = nodes.address
        head: Any = nodes.head_node
        yield Nodes(nodes.address, temp_dir, nodes, (head.node_id, *_ids_of(NAMES[1:])))
    finally:
        all_nodes = RayCluster(nodes.address, temp_dir)
        started = all_nodes.processes()
        ray.shutdown()
        nodes.shutdown()
        for name in ("RAY_ADDRESS", "RAY_TMPDIR"):
            os.environ.pop(name, None)
        left = end_processes([*started, *all_nodes.processes()])
        shutil.rmtree(temp_dir, ignore_errors=True)
        assert not left, f"the Ray cluster left processes behind: {left}"


def _ids_of(names: tuple[str, ...]) -> list[str]:
    import ray

    return [next(node["NodeID"] for node in ray.nodes() if name in node["Resources"]) for name in names]


@pytest.fixture(scope="session")
def open_sharded(ray_cluster: Nodes) -> Iterator[Callable[[BankLayout, int], StateBank]]:
    """Shards on nodes other than the tests' own; the third of three sits beside them."""
    from storage.bank.sharded import ShardedBank, start_sharded_bank

    opened: dict[tuple[BankLayout, int], ShardedBank] = {}
    head, left, right = ray_cluster.ids

    def start(layout: BankLayout, shards: int) -> StateBank:
        if (layout, shards) not in opened:
            where = [left, right, head][:shards]
            trial = f"shared-{uuid.uuid4().hex}"
            opened[layout, shards] = start_sharded_bank(layout, shards, "tests", trial, node_ids=where)
        return opened[layout, shards]

    yield start
    for opened_bank in opened.values():
        opened_bank.close()


@pytest.fixture(
    params=[pytest.param(2, id="two_other_nodes"), pytest.param(3, id="three_nodes", marks=pytest.mark.slow)]
)
def shards(request: pytest.FixtureRequest) -> int:
    return int(request.param)
