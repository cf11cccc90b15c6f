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
"""Published checkpoints by architecture and size: names on the hub, or folders below the current one."""


def default_base(architecture: str, size: str) -> str:
    """What a model starts from where nothing says it: the base shipped for it, the published one, or one to train."""
    shipped = f"{size}-{architecture}"
    return shipped if shipped in shipped_bases() else PUBLISHED_BASES.get((architecture, size), TRAINED_BASE)


def absolute_base(base: BaseSettings) -> BaseSettings:
    """The same base by its absolute path; a name that is no folder stays: it is shipped, on the hub, or wrong."""
    if base.checkpoint in (FRESH_BASE, TRAINED_BASE) or not Path(base.checkpoint).expanduser().is_dir():
        return base
    return replace(base, checkpoint=_absolute(base.checkpoint))


def absolute_data(data: DataSettings) -> DataSettings:
    """The same text by absolute paths, globs of it among them."""
    named = data.tokenizer == BYTES_NAME or data.has_hub_tokenizer
    return replace(
        data,
        files=tuple(map(_absolute_pattern, data.files)),
        # A name of the Hub stays one, unless there is such a folder.
        dataset=_absolute(data.dataset) if data.dataset and Path(data.dataset).expanduser().is_dir() else data.dataset,
        cache=_absolute(data.cache) if data.cache else "",
        tokenizer=data.tokenizer if named else _absolute(data.tokenizer),
    )


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def _absolute_pattern(pattern: str) -> str:
    """The absolute path of a file, or an absolute glob, in which the current folder's own name is no pattern."""
    path = Path(pattern).expanduser()
    if path.is_absolute() or path.exists() or not glob.has_magic(pattern):
        return str(path.absolute())
    return str(Path(glob.escape(str(Path.cwd())), path))
