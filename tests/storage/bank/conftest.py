"""The banks that the tests share: an actor takes seconds to start, so each bank starts once and is cleared per test."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from storage.bank.contract import StateBank
from storage.bank.in_process import InProcessBank
from storage.bank.layout import BankLayout

LAYOUT = BankLayout(rows=7, elements=6, groups=(("layer0", 0, 4), ("layer1", 4, 6)), capacity=5)
KINDS = [
    pytest.param(0, id="in_process"),
    pytest.param(1, id="sharded1", marks=pytest.mark.ray),
    pytest.param(2, id="sharded2", marks=pytest.mark.ray),
]


@pytest.fixture(scope="session")
def open_sharded(ray_cluster: Any) -> Iterator[Callable[[BankLayout, int], StateBank]]:
    from storage.bank.sharded import ShardedBank, start_sharded_bank

    opened: dict[tuple[BankLayout, int], ShardedBank] = {}

    def start(layout: BankLayout, shards: int) -> StateBank:
        if (layout, shards) not in opened:
            opened[layout, shards] = start_sharded_bank(layout, shards, "tests", f"shared-{uuid.uuid4().hex}")
        return opened[layout, shards]

    yield start
    for bank in opened.values():
        bank.close()


@pytest.fixture
def open_bank(request: pytest.FixtureRequest) -> Iterator[Callable[[BankLayout, int], StateBank]]:
    """Gives an empty bank of 0 (in this process) or more shards; the same one whenever the same is asked for."""
    timeouts: list[tuple[StateBank, float]] = []

    def start(layout: BankLayout, shards: int) -> StateBank:
        bank = request.getfixturevalue("open_sharded")(layout, shards) if shards else InProcessBank(layout)
        timeouts.append((bank, bank.timeout_s))
        bank.clear()
        return bank

    yield start
    for bank, timeout_s in timeouts:
        bank.timeout_s = timeout_s


@pytest.fixture(params=KINDS)
def shards(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def bank(open_bank: Callable[[BankLayout, int], StateBank], shards: int) -> StateBank:
    """A bank of 7 rows of 6 elements in two groups and a reservoir of 5 entries, empty."""
    return open_bank(LAYOUT, shards)


@pytest.fixture
def sharded(open_bank: Callable[[BankLayout, int], StateBank]) -> StateBank:
    """The same on one shard only."""
    return open_bank(LAYOUT, 1)
