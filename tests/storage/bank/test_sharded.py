import os
import pickle
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest

from storage.bank.contract import BankLostError, BankTimeoutError, StateBank
from storage.bank.layout import BankLayout
from storage.errors import StorageError

pytestmark = pytest.mark.ray
STATES = np.arange(42, dtype=np.float32).reshape(7, 6)
ROWS = np.arange(7)


@pytest.fixture
def trial(ray_cluster: Any) -> Iterator[str]:
    """A new trial's name; whatever runs under it is ended afterwards."""
    import ray

    from storage.bank.sharded import shard_name

    name = uuid.uuid4().hex
    yield name
    for shard in range(2):
        try:
            ray.kill(ray.get_actor(shard_name(name, shard), namespace="tests"))
        except ValueError:
            continue


def actor_pid(trial: str, shard: int) -> int:
    from ray.util.state import list_actors

    return next(actor.pid for actor in list_actors(detail=True) if actor.name == f"bank-{trial}-{shard}" and actor.pid)


def test_workers_in_other_processes_connect_by_name_and_see_each_others_rows(sharded: Any) -> None:
    import ray

    from storage.bank.sharded import connect_sharded_bank

    namespace, trial = sharded._namespace, sharded._trial

    @ray.remote(num_cpus=0)
    def worker(mine: list[int], others: list[int]) -> np.ndarray:
        client = connect_sharded_bank(namespace, trial)
        client.deposit(0, mine, STATES[mine])
        taken = client.withdraw(1, others)  # waits for the other worker, so both must run at once
        client.close()
        return taken

    low, high = [0, 1, 2, 3], [4, 5, 6]
    taken = ray.get([worker.remote(low, high), worker.remote(high, low)], timeout=120)
    assert np.array_equal(np.concatenate(taken), STATES[high + low])
    assert np.array_equal(sharded.withdraw(1, ROWS), STATES), "a worker's end and close leave the bank alone"


def test_a_pickled_client_connects_to_the_same_bank_and_owns_nothing(sharded: StateBank) -> None:
    sharded.deposit(0, ROWS, STATES)
    sharded.flush()
    copy = pickle.loads(pickle.dumps(sharded))
    assert np.array_equal(copy.withdraw(1, [4]), STATES[[4]])
    copy.close()
    assert np.array_equal(sharded.withdraw(1, [4]), STATES[[4]])


def test_close_ends_the_actors_and_later_use_is_refused(trial: str) -> None:
    from storage.bank.sharded import connect_sharded_bank, start_sharded_bank

    bank = start_sharded_bank(BankLayout(rows=7, elements=6), 1, "tests", trial)
    pid = actor_pid(trial, 0)
    bank.close()
    bank.close()
    with pytest.raises(StorageError, match="is closed"):
        bank.deposit(0, [0], STATES[:1])
    _wait_until_gone(pid)
    with pytest.raises(BankLostError, match=f"shard 0 of the state bank of trial '{trial}' is not running"):
        connect_sharded_bank("tests", trial)


def _wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} of the bank is still alive")


def test_a_second_bank_of_one_trial_is_refused(sharded: Any) -> None:
    from storage.bank.sharded import start_sharded_bank

    with pytest.raises(StorageError, match="has a state bank already"):
        start_sharded_bank(sharded.layout, 1, sharded._namespace, sharded._trial)
    assert sharded.counters()["deposits"] == 0, "the first one goes on"


def test_a_killed_shard_gives_an_error_with_shard_and_rows_for_reads_and_writes(trial: str) -> None:
    from storage.bank.sharded import start_sharded_bank

    bank = start_sharded_bank(BankLayout(rows=6, elements=30_000), 2, "tests", trial, timeout_s=30)
    states = np.ones((6, 30_000), np.float32)
    bank.deposit(0, np.arange(6), states)
    bank.flush()
    bank.prefetch(2, [4])  # waits inside the shard when it dies
    os.kill(actor_pid(trial, 1), signal.SIGKILL)
    began = time.monotonic()
    lost = r"shard 1 \(rows 3 to 5\) of the state bank of trial .* is lost at step 2"
    with pytest.raises(BankLostError, match=lost):
        bank.withdraw(2, [4])
    assert time.monotonic() - began < 25, "the death is reported, not waited out"
    assert np.array_equal(bank.withdraw(1, [0]), states[:1]), "the other shard still answers"
    bank.deposit(1, np.arange(6), states)
    with pytest.raises(BankLostError, match=r"shard 1 \(rows 3 to 5\)"):
        bank.flush()
    bank.close()


def test_the_error_of_a_write_shows_at_a_later_call_and_only_once(sharded: StateBank) -> None:
    sharded.deposit(5, ROWS, STATES)
    sharded.flush()
    sharded.merge_moments(1, [2], np.zeros((1, 2, 3)))
    deadline = time.monotonic() + 20
    with pytest.raises(StorageError, match="row 2 of step 1"):
        while time.monotonic() < deadline:
            sharded.withdraw(6, [0])
    assert np.array_equal(sharded.withdraw(6, [0]), STATES[:1])


def test_more_waiting_reads_than_threads_do_not_hold_up_the_deposit_they_wait_for(sharded: Any) -> None:
    from storage.bank.shard import THREADS

    waiting = [sharded._request(1, np.array([row % 7])) for row in range(THREADS["read"] + 8)]
    sharded.deposit(0, ROWS, STATES)
    taken = np.zeros((len(waiting), 1, 6), np.float32)
    for row, request in enumerate(waiting):
        sharded._deliver(request, 1, np.array([row % 7]), taken[row])
    assert taken[:, 0, 0].tolist() == [STATES[row % 7, 0] for row in range(len(waiting))]


def test_a_prefetch_that_timed_out_leaves_the_withdrawal_its_whole_time(sharded: Any) -> None:
    sharded.timeout_s = 0.2
    sharded.prefetch(1, [0])
    ((link, _, coming),) = sharded._prefetched[1, np.array([0]).tobytes()]
    with pytest.raises(BankTimeoutError):
        link.ask(coming, 30.0)
    sharded.deposit(0, ROWS, STATES)
    assert np.array_equal(sharded.withdraw(1, [0]), STATES[:1])


def without_shared_memory(bank: Any) -> Any:
    """Another client of the same bank, as one on another node would be."""
    copy = pickle.loads(pickle.dumps(bank))
    for link in copy._links:
        assert link.slots is not None, "on its own node a client finds the shard's memory"
        link.slots = None
    return copy


@pytest.mark.parametrize("wire_dtype", ["fp32", "bf16"])
def test_clients_with_and_without_shared_memory_see_the_same(open_bank: Any, wire_dtype: str) -> None:
    elements = 40_000  # a row above and a row below what Ray sends inside a call
    near = open_bank(BankLayout(rows=6, elements=elements, wire_dtype=wire_dtype), 2)
    far, given = without_shared_memory(near), np.random.default_rng(0).standard_normal((6, elements), dtype=np.float32)
    given[4, -1] = np.nan
    for step in range(3):
        near.deposit(step, [5, 1, 2], given[[5, 1, 2]])
        far.deposit(step, [0, 4, 3], given[[0, 4, 3]])
        far.prefetch(step + 1, [3, 5, 4, 1])
        seen = [client.withdraw(step + 1, [3, 5, 4, 1]) for client in (near, far)]
        assert np.array_equal(seen[0], seen[1])
    near.flush()
    far.flush()
    assert not seen[0][2].any()
    assert np.allclose(seen[0][[0, 1, 3]], given[[3, 5, 1]], rtol=0 if wire_dtype == "fp32" else 2**-8, atol=0)
    assert near.counters()["zeroed_rows"] == 3
    far.close()


def test_a_late_client_of_an_old_step_is_refused_with_and_without_shared_memory(sharded: StateBank) -> None:
    far = without_shared_memory(sharded)
    for step in range(3):
        sharded.deposit(step, ROWS, STATES)
    sharded.flush()
    for client in (sharded, far):
        with pytest.raises(StorageError, match="row 2 of step 0 can no longer be written; the bank keeps steps 1 and"):
            client.deposit(0, [2], STATES[[2]])
            client.flush()
        with pytest.raises(StorageError, match="row 2 of step 0 can no longer be read"):
            client.withdraw(1, [2])
    far.close()


def test_a_client_that_was_killed_while_it_wrote_leaves_the_step_before_whole(sharded: Any) -> None:
    import ray

    from storage.bank.sharded import connect_sharded_bank

    namespace, trial = sharded._namespace, sharded._trial
    sharded.deposit(0, ROWS, STATES)
    sharded.deposit(1, ROWS, STATES + 1)
    sharded.flush()

    @ray.remote(num_cpus=0, max_retries=0)
    def dying() -> None:
        client = connect_sharded_bank(namespace, trial)
        slots = client._links[0].slots
        assert slots is not None
        slots.write(2, ROWS[:3], STATES[:3] + 2, ROWS[:3])  # and nobody is told
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(ray.exceptions.WorkerCrashedError):
        ray.get(dying.remote(), timeout=120)
    assert np.array_equal(sharded.withdraw(2, ROWS), STATES + 1)
    sharded.timeout_s = 0.2
    with pytest.raises(BankTimeoutError, match="step 2, row 0"):
        sharded.withdraw(3, ROWS)
    sharded.deposit(2, ROWS, STATES + 2)  # its successor goes on
    assert np.array_equal(sharded.withdraw(3, ROWS), STATES + 2)


def test_memory_is_taken_only_by_what_is_deposited(trial: str) -> None:
    from storage.bank.sharded import start_sharded_bank

    layout = BankLayout(rows=4, elements=16_000_000, groups=(("all", 0, 8),))  # 2 * 256 MB, were it all used
    with start_sharded_bank(layout, 1, "tests", trial) as bank:
        shard = psutil.Process(actor_pid(trial, 0))
        before = shard.memory_info().shared
        bank.merge_moments(0, range(4), np.zeros((4, 1, 3)))
        bank.moments(0)
        assert shard.memory_info().shared - before < 32e6
        for step in range(4):
            bank.deposit(step, [3], np.ones((1, 16_000_000), np.float32))
            bank.flush()
        assert 100e6 < shard.memory_info().shared - before < 170e6, "two generations of one row of 64 MB"


def test_a_shard_can_be_placed_on_a_named_node(trial: str) -> None:
    import ray

    from storage.bank.sharded import start_sharded_bank

    layout, here = BankLayout(rows=7, elements=6), ray.get_runtime_context().get_node_id()
    with pytest.raises(StorageError, match="1 nodes are named for 2 shards"):
        start_sharded_bank(layout, 2, "tests", trial, node_ids=[here])
    with start_sharded_bank(layout, 1, "tests", trial, node_ids=[here]) as bank:
        bank.deposit(0, ROWS, STATES)
        assert np.array_equal(bank.withdraw(1, ROWS), STATES)


def test_the_bank_never_imports_torch() -> None:
    code = "import sys, storage.bank.sharded; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_the_package_itself_imports_nothing_heavy() -> None:
    code = "import sys, storage.bank; sys.exit(bool({'ray', 'numpy', 'pyarrow', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
