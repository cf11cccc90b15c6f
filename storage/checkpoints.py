"""Checkpoints that are whole or refused: a folder per step, a manifest of hashes written last.

A checkpoint is written into `step-N.partial`, gets its manifest and is then renamed. Whatever dies in between leaves
the previous checkpoint as the newest whole one. This module knows nothing of what is inside.
"""

import hashlib
import json
import logging
import shutil
from pathlib import Path

from storage.files import write_json

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
KEPT = 2
"""Newest whole checkpoints that stay: one can be damaged and the other still serves."""


def partial_folder(root: Path, step: int) -> Path:
    """Where the checkpoint of `step` is written before it is published."""
    return root / f"step-{step:08d}.partial"


def publish(root: Path, step: int, identity: str) -> Path:
    """Hash what lies in the partial folder, write the manifest, rename, and drop older checkpoints."""
    partial = partial_folder(root, step)
    files = {str(path.relative_to(partial)): _sha256(path) for path in _files(partial)}
    write_json(partial / MANIFEST, {"step": step, "identity": identity, "files": files})
    final = root / f"step-{step:08d}"
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    for old in sorted(_whole_names(root))[:-KEPT]:
        shutil.rmtree(root / old)
    return final


def newest_whole(root: Path, identity: str) -> tuple[int, Path] | None:
    """(step, folder) of the newest checkpoint that matches its manifest; damaged ones only cause a warning."""
    for name in sorted(_whole_names(root), reverse=True):
        problem = _problem(root / name, identity)
        if problem is None:
            return int(name.removeprefix("step-")), root / name
        log.warning("checkpoint %s is refused (%s); the one before it is tried", root / name, problem)
    return None


def _whole_names(root: Path) -> list[str]:
    return [path.name for path in root.glob("step-*") if path.is_dir() and path.suffix != ".partial"]


def _problem(folder: Path, identity: str) -> str | None:
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
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
