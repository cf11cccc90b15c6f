"""Files that are whole or absent: atomic writes, and the question whether a folder can be written.

Every write goes to a temporary file beside the target, is flushed to the disk, and is renamed over the target, so
that a reader (or a run that continues after kill -9) meets the old content or the new one, never a part.
"""

import json
import os
import uuid
from pathlib import Path
from typing import Any


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Replace the file `path` by `content` atomically; missing parent folders are made. Raises OSError."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    # The name is unique, so two processes that write one target each leave a whole file; the last rename wins.
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(target.parent)


def write_text(path: str | os.PathLike[str], content: str) -> None:
    """Replace the file `path` by `content` in UTF-8, atomically. Raises OSError."""
    write_bytes(path, content.encode("utf-8"))


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Replace the file `path` by `value` as indented JSON, atomically.

    Raises ValueError for a NaN or an infinity (JSON has none: write null or a string), TypeError for what JSON does
    not know, OSError for a place that cannot be written. In all three cases the old file stays.
    """
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def sync_file(path: str | os.PathLike[str]) -> None:
    """Wait until the content of a file that is already written lies on the disk."""
    with Path(path).open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Wait until the names in `folder` (a rename, a new file) lie on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def folder_is_writable(path: str | os.PathLike[str]) -> bool:
    """Whether files can be made in the folder `path`, or in the nearest folder above it that exists.

    A file is really made and removed again: permission bits say nothing about root, quotas or read-only mounts.
    Nothing else is left behind; in particular `path` itself is not made.
    """
    folder = Path(path).absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    probe = folder / f".writable-{uuid.uuid4().hex}"
    try:
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError:
        return False
    return True
