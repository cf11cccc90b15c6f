"""Is the tracking store usable, asked before anything costly starts, without importing MLflow.

- `check_store`: one sentence at once when a store is locked, unwritable, missing or unreachable.
- `wait_until_writable`: waits for another program's lock on an SQLite store, up to a stated time.
- `TrackingError`: a store that fails in the middle of a sweep; the driver catches it, results on disk are untouched.
"""

import sqlite3
import urllib.error
import urllib.parse
import urllib.request
from contextlib import closing
from pathlib import Path

from storage.errors import StorageError

SQLITE_PREFIX = "sqlite:///"
LOCK_TIMEOUT_S = 0.5
SERVER_TIMEOUT_S = 5.0


class TrackingError(StorageError):
    """The tracking store failed after the sweep had started: tracking is behind, results on disk are whole."""


def sqlite_path(uri: str) -> Path | None:
    """The database file behind an `sqlite:///` address (relative to the current folder), `None` for any other store."""
    if not uri.startswith(SQLITE_PREFIX):
        return None
    return Path(urllib.parse.unquote(uri[len(SQLITE_PREFIX) :].split("?", 1)[0]))


def check_store(uri: str) -> None:
    """Raise `StorageError` when the store at `uri` cannot be written to now.

    SQLite files are opened and a write transaction is begun and rolled back; a file that does not exist yet is not
    made. MLflow servers are asked for their `/health` page. Any other store is left to MLflow's own first contact.
    """
    path = sqlite_path(uri)
    if path is not None:
        _check_sqlite(path)
    elif uri.startswith(("http://", "https://")):
        _check_server(uri)


def _check_sqlite(path: Path) -> None:
    if not path.name or path.is_dir():
        raise StorageError(f"tracking.uri names {str(path)!r}, which is no file; write for example sqlite:///mlflow.db")
    if not path.parent.is_dir():
        raise StorageError(
            f"the folder {str(path.parent)!r} of the tracking store does not exist; "
            "make it or choose another tracking.uri"
        )
    _check_folder(path.parent)
    if path.exists():
        _begin_and_roll_back(path, LOCK_TIMEOUT_S)


def _check_folder(folder: Path) -> None:
    # SQLite writes its journal beside the database, so the folder itself must be writable. Permission bits do not
    # tell (root, read-only mounts), a probe file does.
    probe = folder / ".tracking-store-probe"
    try:
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(
            f"the folder {str(folder)!r} of the tracking store is not writable ({error.strerror}); "
            "choose another place with tracking.uri=sqlite:///FOLDER/mlflow.db"
        ) from error


def _begin_and_roll_back(path: Path, timeout_s: float) -> None:
    uri = f"file:{urllib.parse.quote(str(path.resolve()))}?mode=rw"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=timeout_s, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
    except sqlite3.DatabaseError as error:
        raise StorageError(_sqlite_sentence(path, str(error))) from error


def _sqlite_sentence(path: Path, reason: str) -> str:
    if "locked" in reason:
        return (
            f"the tracking store {str(path)!r} is locked by another program; "
            "close that program or choose another store with tracking.uri=sqlite:///other.db"
        )
    if "not a database" in reason:
        return f"the tracking store {str(path)!r} is not an SQLite database; choose another file with tracking.uri"
    return f"the tracking store {str(path)!r} cannot be written ({reason}); choose another file with tracking.uri"


def _check_server(uri: str) -> None:
    address = uri.rstrip("/")
    sentence = f"the MLflow server {address} does not answer ({{}}); start it or choose another tracking.uri"
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=SERVER_TIMEOUT_S):
            return
    except urllib.error.HTTPError as error:
        # A server that asks for a login or lies behind a prefix still answers; only its own failures count here.
        if error.code >= 500:
            raise StorageError(sentence.format(f"status {error.code}")) from error
    except (OSError, ValueError) as error:
        raise StorageError(sentence.format(getattr(error, "reason", error))) from error


def wait_until_writable(uri: str, patience_s: float) -> None:
    """Wait up to `patience_s` seconds for an SQLite store's write lock; raise `TrackingError` when it stays taken.

    SQLite's own busy handler does the waiting, with growing pauses. Other stores return at once.
    """
    path = sqlite_path(uri)
    if path is None or not path.exists():
        return
    try:
        _begin_and_roll_back(path, patience_s)
    except StorageError as error:
        raise TrackingError(f"{error} (waited {patience_s:g} s; results on disk are whole)") from error
