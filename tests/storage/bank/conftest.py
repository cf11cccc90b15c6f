"""The banks that the contract suite runs against. Each is started once per module and cleared between tests."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from storage.bank.contract import StateBank
from storage.bank.in_process import InProcessBank
from storage.bank.layout import BankLayout

GROUPS = (("layer0", 0, 4), ("layer1", 4, 6))
KINDS = [
    pytest.param(0, id="in_process"),
    pytest.param(1, id="sharded1", marks=pytest.mark.ray),
    pytest.param(2, id="sharded2", marks=pytest.mark.ray),
]


@pytest.fixture(scope="module")
def open_bank(request: pytest.FixtureRequest) -> Iterator[Callable[[BankLayout, int], StateBank]]:
    """Opens a bank of 0 (in this process) or more shards, and closes it after the module."""
    with ExitStack() as stack:

        def start(layout: BankLayout, shards: int) -> StateBank:
            if shards == 0:
                return stack.enter_context(InProcessBank(layout))
            request.getfixturevalue("ray_cluster")
            from storage.bank.sharded import start_sharded_bank

            return stack.enter_context(start_sharded_bank(layout, shards, "tests", uuid.uuid4().hex))

        yield start


@pytest.fixture(scope="module", params=KINDS)
def shards(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def module_bank(open_bank: Callable[[BankLayout, int], StateBank], shards: int) -> StateBank:
    return open_bank(BankLayout(rows=7, elements=6, groups=GROUPS), shards)


@pytest.fixture
def bank(module_bank: StateBank) -> Iterator[StateBank]:
    """A bank of 7 rows of 6 elements in two groups, empty."""
    module_bank.clear()
    timeout_s = module_bank.timeout_s
    yield module_bank
    module_bank.timeout_s = timeout_s
