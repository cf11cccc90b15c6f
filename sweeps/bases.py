"""Bases from the Hugging Face hub: the commit of each, found once before anything starts, and fetched by a run."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from models.errors import ModelError
from models.hub import MAIN, cached_snapshot, fetch_snapshot, is_hub_id
from models.shipped import shipped_bases
from workers.settings import FRESH_BASE, TRAINED_BASE, BaseSettings, TrialConfig

Commits = Mapping[tuple[str, str], str]
"""Name and revision of a base on the hub -> commit hash; what is not in the cache of a plan to show is left out."""


def lies_on_hub(base: BaseSettings) -> bool:
    """Whether a base is a name on the hub: neither a folder nor a shipped base, and written `owner/name`."""
    name = base.checkpoint
    elsewhere = name in (FRESH_BASE, TRAINED_BASE, *shipped_bases()) or Path(name).expanduser().is_dir()
    return not elsewhere and is_hub_id(name)


def base_commits(configs: Iterable[TrialConfig], *, fetch: bool) -> Commits:
    """The commits of all bases on the hub; with `fetch` each is fetched as far as it is not here. Raises ModelError."""
    commits: dict[tuple[str, str], str] = {}
    for base in {config.base for config in configs}:
        if not lies_on_hub(base):
            if base.revision != MAIN:
                raise ModelError(
                    f"base.revision is {base.revision!r}, but base.checkpoint is {base.checkpoint!r}, which has no "
                    "revisions; leave base.revision out, or write owner/name of a checkpoint on the hub"
                )
            continue
        find = fetch_snapshot if fetch else cached_snapshot
        snapshot = find(base.checkpoint, base.revision)
        if snapshot is not None:
            commits[base.checkpoint, base.revision] = snapshot.commit
    return commits


def pinned(config: TrialConfig, commits: Commits) -> TrialConfig:
    """The same trial with the commit of its base in place of a branch or tag."""
    key = (config.base.checkpoint, config.base.revision)
    return replace(config, base=replace(config.base, revision=commits[key])) if key in commits else config


def to_fetch(configs: Iterable[TrialConfig], commits: Commits) -> list[str]:
    """What a run fetches of bases before it starts, a phrase each."""
    bases = {(one.base.checkpoint, one.base.revision) for one in configs if lies_on_hub(one.base)}
    return [f"{name} at {revision} (config.json and weights)" for name, revision in sorted(bases - commits.keys())]
