"""The checkpoints that travel with this package, and how a name or a path becomes a checkpoint folder."""

from pathlib import Path

from models.errors import ModelError

BASES = Path(__file__).parent / "bases"
"""One folder per shipped base, each with its recipe beside it."""


def shipped_bases() -> list[str]:
    """Names of the shipped bases."""
    return sorted(path.name for path in BASES.iterdir() if path.is_dir())


def checkpoint_folder(name: str) -> Path:
    """The folder of the shipped base of that name, or the folder that `name` is. Raises ModelError for neither."""
    if name in shipped_bases():
        return BASES / name
    folder = Path(name).expanduser().absolute()
    if not folder.is_dir():
        raise ModelError(
            f"base.checkpoint is {name!r}, which is no folder and no shipped base ({', '.join(shipped_bases())}); "
            "write the folder that holds config.json and the weights"
        )
    return folder
