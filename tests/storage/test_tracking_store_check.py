import http.server
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from storage.errors import StorageError
from storage.tracking_store_check import TrackingError, check_store, sqlite_path, wait_until_writable


@contextmanager
def locked(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection


@contextmanager
def server_that_answers(status: int) -> Iterator[str]:
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_new_file_in_a_writable_folder_is_fine_and_is_not_made(tmp_path: Path) -> None:
    check_store(f"sqlite:///{tmp_path}/mlflow.db")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_store_is_fine_and_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE kept (value INTEGER)")
    before = path.read_bytes()
    check_store(f"sqlite:///{path}")
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["mlflow.db"]


def test_a_locked_store_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    with locked(path):
        started = time.monotonic()
        with pytest.raises(StorageError, match="is locked by another program; close that program or choose another"):
            check_store(f"sqlite:///{path}")
        assert time.monotonic() - started < 5
    check_store(f"sqlite:///{path}")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"the folder '.*/nowhere' of the tracking store does not exist"):
        check_store(f"sqlite:///{tmp_path}/nowhere/mlflow.db")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc refuses new files even to root")
def test_an_unwritable_folder_is_named() -> None:
    with pytest.raises(StorageError, match="the folder '/proc' of the tracking store is not writable"):
        check_store("sqlite:////proc/mlflow.db")


def test_a_folder_is_not_a_store(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="which is no file"):
        check_store(f"sqlite:///{tmp_path}")


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no database " * 100)
    with pytest.raises(StorageError, match=r"'.*notes.txt' is not an SQLite database"):
        check_store(f"sqlite:///{path}")
    assert path.read_text() == "no database " * 100


def test_a_silent_server_is_told() -> None:
    with pytest.raises(StorageError, match=r"the MLflow server http://127.0.0.1:9 does not answer"):
        check_store("http://127.0.0.1:9/")


def test_a_broken_server_is_told_and_a_well_one_is_fine() -> None:
    with server_that_answers(200) as address:
        check_store(address)
    with server_that_answers(401) as address:
        check_store(address)
    with server_that_answers(503) as address, pytest.raises(StorageError, match="status 503"):
        check_store(address)


def test_waiting_ends_when_the_lock_goes(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    with locked(path) as connection:
        timer = threading.Timer(0.5, connection.execute, ["ROLLBACK"])
        timer.start()
        wait_until_writable(f"sqlite:///{path}", 20)
        timer.join()
        assert not connection.in_transaction


def test_waiting_for_a_lock_that_stays_is_a_tracking_error(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    with locked(path), pytest.raises(TrackingError, match=r"is locked .*waited 0.3 s; results on disk are whole"):
        wait_until_writable(f"sqlite:///{path}", 0.3)


def test_paths_of_addresses() -> None:
    assert sqlite_path("sqlite:///mlflow.db") == Path("mlflow.db")
    assert sqlite_path("sqlite:////data/a%20b.db?timeout=3") == Path("/data/a b.db")
    assert sqlite_path("http://127.0.0.1:5000") is None


def test_the_check_and_the_tracker_module_import_no_mlflow() -> None:
    code = (
        "import sys, storage.tracking as t; t.check_store('sqlite:///x.db');"
        "print([name for name in ('mlflow', 'pandas', 'torch', 'ray', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
