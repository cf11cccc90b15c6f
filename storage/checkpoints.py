"""Checkpoints that are whole or refused: a folder per step, a manifest of hashes written last.

A checkpoint is written into `step-N.partial`, gets its manifest and is then renamed. Whatever dies in between leaves
the previous checkpoint as the newest whole one. This module knows nothing of what is inside.

A checkpoint has an identity, whose it is, and a layout: settings by name, such as the number of workers, that decide
how its files are cut. Only the same settings can go on from it; others are an error, never a new start in silence.
"""

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from storage.errors import StorageError
from storage.files import write_json

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
KEPT = 2
"""Newest whole checkpoints that stay: one can be damaged and the other still serves."""


def partial_folder(root: Path, step: int) -> Path:
    """Where the checkpoint of `step` is written before it is published."""
    return root / f"step-{step:08d}.partial"


def publish(root: Path, step: int, identity: str, layout: Mapping[str, int]) -> Path:
    """Hash what lies in the partial folder, write the manifest, rename, and drop older checkpoints."""
    partial = partial_folder(root, step)
    files = {str(path.relative_to(partial)): _sha256(path) for path in _files(partial)}
    write_json(partial / MANIFEST, {"step": step, "identity": identity, "layout": dict(layout), "files": files})
    final = root / f"step-{step:08d}"
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    for old in sorted(_whole_names(root))[:-KEPT]:
        shutil.rmtree(root / old)
    return final


def newest_whole(root: Path, identity: str, layout: Mapping[str, int]) -> tuple[int, Path] | None:
    """(step, folder) of the newest checkpoint that matches its manifest; damaged ones only cause a warning.

    Raises:
        StorageError: it was written with another layout.
    """
    for name in sorted(_whole_names(root), reverse=True):
        problem = _problem(root / name, identity)
        if problem is None:
            _check_layout(root, _manifest(root / name), layout)
            return int(name.removeprefix("step-")), root / name
        log.warning("checkpoint %s is refused (%s); the one before it is tried", root / name, problem)
    return None


def check_newest_layout(root: Path, identity: str, layout: Mapping[str, int]) -> None:
    """Raise StorageError when `newest_whole` would; reads the newest manifest alone, so damage is not seen."""
    for name in sorted(_whole_names(root), reverse=True):
        try:
            manifest = _manifest(root / name)
        except (OSError, ValueError):
            continue
        if manifest["identity"] == identity:
            _check_layout(root, manifest, layout)
            return


def _check_layout(root: Path, manifest: dict[str, Any], layout: Mapping[str, int]) -> None:
    written = manifest["layout"]
    if written != layout:
        differ = [name for name in layout if written.get(name) != layout[name]]
        was, now = (", ".join(f"{name}={values.get(name)}" for name in differ) for values in (written, layout))
        raise StorageError(
            f"the checkpoint of step {manifest['step']} in {root} was written with {was}, and only that can "
            f"go on from it, not {now}; write {was}"
        )


def _manifest(folder: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    return manifest


def _whole_names(root: Path) -> list[str]:
    return [path.name for path in root.glob("step-*") if path.is_dir() and path.suffix != ".partial"]


def _problem(folder: Path, identity: str) -> str | None:
    try:
        manifest = _manifest(folder)
    except (OSError, ValueError) as error:
        return f"its manifest cannot be read: {error}"
    if manifest["identity"] != identity:
        return f"it belongs to {manifest['identity']}"
    for name, expected in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if _sha256(path) != expected:
            return f"{name} is damaged"
    return None


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
