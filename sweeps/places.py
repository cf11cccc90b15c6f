"""Where a sweep's base and text lie: the base that a model starts from by default, and paths that hold anywhere.

Workers of a trial run in other folders, so paths become absolute before anything is planned.
"""

import glob
from dataclasses import replace
from pathlib import Path

from models.shipped import shipped_bases
from storage.settings import BYTES_NAME, DataSettings
from workers.settings import FRESH_BASE, TRAINED_BASE, BaseSettings

PUBLISHED_BASES = {
    **{("mamba1", size): f"state-spaces/mamba-{size}" for size in ("130m", "370m", "790m", "1.4b", "2.8b")},
    **{("mamba2", size): f"state-spaces/mamba2-{size}" for size in ("130m", "370m", "780m", "1.3b", "2.7b")},
}
"""Published checkpoints by architecture and size: their names, and the folders below the current one that hold them."""


def default_base(architecture: str, size: str) -> str:
    """What a model starts from where nothing says it: the base shipped for it, the published one, or one to train."""
    shipped = f"{size}-{architecture}"
    return shipped if shipped in shipped_bases() else PUBLISHED_BASES.get((architecture, size), TRAINED_BASE)


def absolute_base(base: BaseSettings) -> BaseSettings:
    """The same base by its absolute path; a name that is no folder stays as it is, for the sentence that says so."""
    named = base.checkpoint in (FRESH_BASE, TRAINED_BASE, *shipped_bases())
    if named or not Path(base.checkpoint).expanduser().is_dir():
        return base
    return replace(base, checkpoint=_absolute(base.checkpoint))


def absolute_data(data: DataSettings) -> DataSettings:
    """The same text by absolute paths, globs of it among them."""
    tokenizer = data.tokenizer if data.tokenizer == BYTES_NAME else _absolute(data.tokenizer)
    return replace(data, files=tuple(map(_absolute_pattern, data.files)), tokenizer=tokenizer)


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def _absolute_pattern(pattern: str) -> str:
    """The absolute path of a file, or an absolute glob, in which the current folder's own name is no pattern."""
    path = Path(pattern).expanduser()
    if path.is_absolute() or path.exists() or not glob.has_magic(pattern):
        return str(path.absolute())
    return str(Path(glob.escape(str(Path.cwd())), path))
