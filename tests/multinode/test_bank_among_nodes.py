"""What only several nodes show: workers beside some shards and apart from others, and a node that dies."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.bank.contract import BankLostError, StateBank
from storage.bank.layout import BankLayout, Float32
from tests.multinode.conftest import Nodes

pytestmark = pytest.mark.ray

ROWS = np.arange(6)
WIDE = BankLayout(rows=6, elements=60_000)
"""A row is 240 kB: more than travels inside a call."""


def states(step: int, elements: int = WIDE.elements) -> Float32:
    return np.random.default_rng(step).standard_normal((6, elements), dtype=np.float32)


def on(node: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)


def test_every_shard_runs_on_the_node_it_was_given(
    open_bank: Callable[[BankLayout, int], StateBank], ray_cluster: Nodes
) -> None:
    bank: Any = open_bank(WIDE, 3)
    head, left, right = ray_cluster.ids
    assert len({head, left, right}) == 3
    assert [node_of(actor) for actor in (link.actor for link in bank._links)] == [left, right, head]


def node_of(actor: Any) -> str:
    from ray.util.state import get_actor

    found: Any = get_actor(actor._actor_id.hex())
    return str(found.node_id)


@pytest.mark.parametrize("elements", [60_000, 6], ids=["large rows", "small rows"])
def test_workers_on_all_nodes_write_and_read_the_rows_of_all_shards(
    elements: int, open_bank: Callable[[BankLayout, int], StateBank], ray_cluster: Nodes
) -> None:
    import ray

    bank = open_bank(BankLayout(rows=6, elements=elements), 3)

    @ray.remote(num_cpus=0)
    def work(client: StateBank, mine: list[int], given: Float32, steps: int) -> tuple[str, list[Float32]]:
        """Deposit rows and read all of them, step by step: the node it ran on, and all it read."""
        read = []
        for step in range(steps):
            client.deposit(step, mine, given[mine] + np.float32(step))
            read.append(client.withdraw(step + 1, np.arange(6)))
        client.close()
        return ray.get_runtime_context().get_node_id(), read

    # Rows 0-1, 2-3 and 4-5 lie on the left, the right and the head; each worker writes to two shards.
    parts = [[0, 2], [1, 4], [5, 3]]
    works = [
        work.options(scheduling_strategy=on(node)).remote(bank, mine, states(0, elements), 3)
        for node, mine in zip(ray_cluster.ids, parts, strict=True)
    ]
    answers = ray.get(works, timeout=120)
    assert [node for node, _ in answers] == list(ray_cluster.ids)
    for _, read in answers:
        for step, taken in enumerate(read):
            assert np.array_equal(taken, states(0, elements) + np.float32(step))
    assert np.array_equal(bank.withdraw(3, ROWS), states(0, elements) + np.float32(2))


def test_a_snapshot_of_three_nodes_is_restored_on_one(
    open_bank: Callable[[BankLayout, int], StateBank], tmp_path: Path
) -> None:
    wide = open_bank(WIDE, 3)
    wide.deposit(4, ROWS, states(4))
    wide.snapshot(tmp_path)
    one = open_bank(WIDE, 0)
    one.restore(tmp_path)
    assert np.array_equal(one.withdraw(5, ROWS), states(4))
    assert one.digest() == wide.digest()


@pytest.mark.slow
def test_a_node_that_dies_takes_its_shard_alone(ray_cluster: Nodes) -> None:
    from storage.bank.sharded import start_sharded_bank

    head = ray_cluster.ids[0]
    doomed = ray_cluster.nodes.add_node(num_cpus=0)
    bank = start_sharded_bank(WIDE, 2, "tests", uuid.uuid4().hex, node_ids=[head, doomed.node_id])
    assert [node_of(actor) for actor in (link.actor for link in bank._links)] == [head, doomed.node_id]
    bank.deposit(0, ROWS, states(0))
    bank.flush()
    ray_cluster.nodes.remove_node(doomed, allow_graceful=False)
    with pytest.raises(BankLostError, match=r"shard 1 \(rows 3 to 5\) .* restart the trial from its last checkpoint"):
        bank.withdraw(1, ROWS)
    assert np.array_equal(bank.withdraw(1, [0, 2]), states(0)[[0, 2]]), "the other shard still answers"
    bank.close()
