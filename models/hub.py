"""Checkpoints of the Hugging Face hub: what a name stands for, and its files in the hub's own cache. Imports no torch.

Only config.json, the weights and tokenizer.json are fetched, in one format of weights: safetensors where there are. A
commit that lies whole in the cache is used without the network.
"""

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from models.content import CONFIG, TOKENIZER, choose_weights, read_config, weights_files
from models.errors import ModelError

MAIN = "main"
"""Revision that stands for the newest commit."""
_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Snapshot:
    """One commit of a checkpoint on this machine."""

    folder: Path
    """Holds config.json, the weights and, where there is one, tokenizer.json."""
    commit: str
    """40 hexadecimal digits."""


def is_hub_id(name: str) -> bool:
    """Whether `name` is written as the hub writes its models, `owner/name`."""
    return _ID.fullmatch(name) is not None


def cached_snapshot(name: str, revision: str = MAIN) -> Snapshot | None:
    """What the cache holds of that revision; None if not all of it is there. Asks nobody.

    A branch or tag is the commit that it was when it was last fetched.
    """
    from huggingface_hub import constants

    # The layout of the cache is documented by the hub: refs/<revision> names a commit, snapshots/<commit> its files.
    kept = Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
    reference = kept / "refs" / revision
    commit = revision
    if _COMMIT.fullmatch(revision) is None:
        if not reference.is_file():
            return None
        commit = reference.read_text(encoding="utf-8").strip()
    folder = kept / "snapshots" / commit
    try:
        read_config(folder)
        weights_files(folder)
    except ModelError:
        return None
    return Snapshot(folder, commit)


def fetch_snapshot(name: str, revision: str = MAIN) -> Snapshot:
    """Fetch a checkpoint, or what its cache lacks of it.

    Args:
        name: id on the hub, `owner/name`.
        revision: branch, tag or commit hash.

    Raises:
        ModelError: if there is no such model or revision, it may not be read, the network fails, or the files do not
            come whole.
    """
    from huggingface_hub import HfApi, constants, snapshot_download

    cached = cached_snapshot(name, revision)
    if cached is not None and (_COMMIT.fullmatch(revision) or constants.HF_HUB_OFFLINE):
        return cached
    with _explained(name, revision):
        listed = HfApi().model_info(name, revision=revision).siblings or []
    wanted = _wanted([one.rfilename for one in listed], name)
    with _explained(name, revision, begun=True):
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=wanted))
    return Snapshot(folder, folder.name)


def _wanted(names: Collection[str], name: str) -> list[str]:
    """The files of a checkpoint among those of a repository."""
    if CONFIG not in names:
        raise ModelError(f"{name} on the hub has no {CONFIG}, so it is no checkpoint that can be read here.")
    return [CONFIG, *choose_weights(names, f"{name} on the hub"), *({TOKENIZER} & set(names))]


@contextmanager
def _explained(name: str, revision: str, *, begun: bool = False) -> Iterator[None]:
    """Turn what the hub's client raises into a ModelError of one sentence; `begun`: its files are on their way."""
    from huggingface_hub import constants, errors

    offline = f"fetch {name} where there is a network, or give a folder as base.checkpoint"
    try:
        yield
    except errors.GatedRepoError as error:
        raise ModelError(
            f"{name} may be read only by those whom its owner lets in: ask for it at {constants.ENDPOINT}/{name} and "
            "log in with `hf auth login`."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelError(
            f"{name} has no revision {revision!r} on the hub: set base.revision to a branch, tag or commit of it, or "
            f"leave it out for {MAIN!r}."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"{name!r} is no folder here and no model of {constants.ENDPOINT} that may be read: correct "
            "base.checkpoint, or log in with `hf auth login` if the model is private."
        ) from error
    except errors.OfflineModeIsEnabled as error:
        raise ModelError(
            f"{name} at revision {revision!r} is not in the cache {constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE is set: "
            f"{offline}."
        ) from error
    except errors.HfHubHTTPError as error:
        raise ModelError(
            f"{constants.ENDPOINT} answered {error.response.status_code} when asked for {name}: try again later, or "
            "give a folder as base.checkpoint."
        ) from error
    except (errors.HTTPError, errors.LocalEntryNotFoundError) as error:
        if begun:
            raise ModelError(_not_whole(name, error)) from error
        there = cached_snapshot(name, revision)
        way_out = f"set HF_HUB_OFFLINE=1 to use commit {there.commit} of the cache" if there else offline
        raise ModelError(f"{constants.ENDPOINT} cannot be reached for {name}: {way_out}.") from error
    except OSError as error:
        raise ModelError(_not_whole(name, error)) from error


def _not_whole(name: str, error: Exception) -> str:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return f"{name} did not come whole from the hub ({reason}): run the same command again."
