"""The three kinds of store that the contract is held over."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from optuna.storages import BaseStorage, InMemoryStorage

from sweeps.search.plan import SearchPlan
from sweeps.search.study import open_storage
from tests.sweeps.search.searches import Bench, open_bench

OpenBench = Callable[..., Bench]


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite store with its tables, which take a second to make."""
    path = tmp_path_factory.mktemp("store") / "study.db"
    open_storage(f"sqlite:///{path}")
    return path


@pytest.fixture(params=["memory", "sqlite", "journal"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path, empty_database: Path) -> Callable[[], BaseStorage]:
    """Opens the store as a new process would: anew from its file, but for the one that has none."""
    if request.param == "memory":
        storage = InMemoryStorage()
        return lambda: storage
    shutil.copy(empty_database, tmp_path / "study.db")
    url = f"sqlite:///{tmp_path}/study.db" if request.param == "sqlite" else f"journal:{tmp_path}/study.log"
    return lambda: open_storage(url)


@pytest.fixture
def bench(tmp_path: Path, open_store: Callable[[], BaseStorage]) -> Iterator[OpenBench]:
    with ExitStack() as stack:

        def make(plan: SearchPlan, folder: str = "out") -> Bench:
            return stack.enter_context(open_bench(tmp_path / folder, plan, open_store))

        yield make
