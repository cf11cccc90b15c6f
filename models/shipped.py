"""The checkpoints that travel with this package, and how a name or a path becomes a checkpoint folder."""

from pathlib import Path

from models.errors import ModelError
from models.hub import MAIN, fetch_snapshot, is_hub_id

BASES = Path(__file__).parent / "bases"
"""One folder per shipped base, each with its recipe beside it."""


def shipped_bases() -> list[str]:
    """Names of the shipped bases."""
    return sorted(path.name for path in BASES.iterdir() if path.is_dir())


def checkpoint_folder(name: str, revision: str = MAIN) -> Path:
    """The folder of a checkpoint: the folder that `name` is, else the shipped base, else that of the hub at `revision`.

    What the hub's cache lacks is fetched. Raises ModelError where there is no such checkpoint.
    """
    folder = Path(name).expanduser().absolute()
    if folder.is_dir():
        return folder
    if name in shipped_bases():
        return BASES / name
    if is_hub_id(name):
        return fetch_snapshot(name, revision).folder
    raise ModelError(
        f"base.checkpoint is {name!r}, which is no folder and no shipped base ({', '.join(shipped_bases())}); "
        "write the folder that holds config.json and the weights, or owner/name of a checkpoint on the Hugging Face hub"
    )
