"""The contract suite of the bank with its shards on several nodes: the very tests that the other banks pass."""

import inspect

import pytest

from tests.storage.bank import test_contract, test_reservoir_contract
from tests.storage.bank.test_contract import TestEveryBank

__all__ = ["TestEveryBank"]

pytestmark = pytest.mark.ray

# Every test function there that takes a `bank`, so that a new one runs here too.
globals().update(
    {
        name: test
        for module in (test_contract, test_reservoir_contract)
        for name, test in inspect.getmembers(module, inspect.isfunction)
        if name.startswith("test_") and "bank" in inspect.signature(test).parameters
    }
)
