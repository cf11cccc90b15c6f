"""Names of texts and tokenizers on the Hugging Face Hub: their commits, what is fetched, and plain words for refusals.

What a trial reads must not move under it, so a run asks once (`pinned_data`) and from then on every setting names full
commits, whose content never changes. Only `pinned_data`, `commit_of` and `fetch_tokenizer` use the network. Tokens of
access are those of `hf auth login`; none is read or kept here.
"""

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from storage.errors import StorageError
from storage.settings import MAIN_REVISION, TRAIN_SPLIT, DataSettings

TOKENIZER_FILE = "tokenizer.json"
_COMMIT = re.compile(r"[0-9a-f]{40}")


def is_commit(revision: str) -> bool:
    """Whether a revision is a full commit hash, which stands for one content for ever."""
    return _COMMIT.fullmatch(revision) is not None


def is_folder(dataset: str) -> bool:
    """Whether a `data.dataset` is a folder of this machine; else it is a name on the Hub."""
    return Path(dataset).expanduser().is_dir()


def pinned_data(settings: DataSettings) -> DataSettings:
    """The same settings with full commits for what they name on the Hub, and the tokenizer fetched.

    Uses the network where a branch or a tag is named, or a tokenizer is not here yet. Raises StorageError.
    """
    revision, tokenizer = settings.revision, settings.tokenizer
    if settings.dataset and is_folder(settings.dataset):
        if settings.revision:
            raise StorageError(
                f"data.revision is {settings.revision!r}, but data.dataset={settings.dataset} is a folder, which has "
                "none; leave data.revision out"
            )
    elif settings.dataset and not is_commit(settings.revision):
        revision = commit_of(settings.dataset, settings.revision)
    if settings.has_hub_tokenizer:
        tokenizer = fetch_tokenizer(settings.tokenizer)
    return replace(settings, revision=revision, tokenizer=tokenizer)


def is_known(settings: DataSettings) -> bool:
    """Whether it is known without the network which text and which tokenizer these settings stand for."""
    text = not settings.dataset or is_folder(settings.dataset) or is_commit(settings.revision)
    return text and (not settings.has_hub_tokenizer or cached_tokenizer(settings.tokenizer) is not None)


def commit_of(dataset: str, revision: str) -> str:
    """Full commit that `revision` (empty: main) of a dataset of the Hub stands for now. Raises StorageError."""
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", dataset) is None:
        raise StorageError(f"data.dataset: there is no folder {dataset}; write owner/name of the Hub, or a folder")
    from huggingface_hub import HfApi

    api = HfApi()
    with _plain_errors("data.dataset", dataset, revision or MAIN_REVISION, "data.revision", "use data.files"):
        api.auth_check(dataset, repo_type="dataset")
        commit = api.dataset_info(dataset, revision=revision or MAIN_REVISION).sha
    if commit is None:
        raise StorageError(f"data.dataset: the Hub names no commit for {dataset}; write it as data.revision")
    return commit


def split_name(tokenizer: str) -> tuple[str, str]:
    """`owner/name` and revision (main if none is said) of a tokenizer on the Hub."""
    name, _, revision = tokenizer.partition("@")
    return name, revision or MAIN_REVISION


def cached_tokenizer(tokenizer: str) -> Path | None:
    """Where the tokenizer.json of `owner/name[@revision]` lies, if it was fetched before; uses no network."""
    from huggingface_hub import try_to_load_from_cache

    name, revision = split_name(tokenizer)
    found = try_to_load_from_cache(name, TOKENIZER_FILE, revision=revision)
    return Path(found) if isinstance(found, str) else None


def fetch_tokenizer(tokenizer: str) -> str:
    """Fetch the tokenizer.json of `owner/name[@revision]`; return `owner/name@commit`. Raises StorageError."""
    name, revision = split_name(tokenizer)
    if is_commit(revision) and cached_tokenizer(tokenizer) is not None:
        return tokenizer
    from huggingface_hub import HfApi, constants, hf_hub_download

    where = "data.tokenizer=owner/name@REVISION"
    with _plain_errors("data.tokenizer", name, revision, where, f"write the path of a {TOKENIZER_FILE}"):
        # Asked first, because a download tries for half a minute before it says that there is no network.
        found = revision if constants.HF_HUB_OFFLINE else HfApi().model_info(name, revision=revision).sha
        path = hf_hub_download(name, TOKENIZER_FILE, revision=found)
    # The file lies in snapshots/<commit> of the library's cache.
    return f"{name}@{Path(path).parent.name}"


@contextmanager
def _plain_errors(setting: str, name: str, revision: str, where: str, way_out: str) -> Iterator[None]:
    """Turn what the Hub's client raises into one sentence about the setting."""
    from huggingface_hub import errors

    def sentence(text: str) -> StorageError:
        return StorageError(f"{setting}: {text}")

    try:
        yield
    except errors.GatedRepoError as error:
        raise sentence(
            f"{name} is gated on the Hugging Face Hub; ask for access on its page and log in with `hf auth login`"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise sentence(
            f"there is no {name} on the Hugging Face Hub that you may read; check the name, or log in with `hf auth "
            "login` if it is private"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise sentence(f"{name} has no revision {revision!r}; write a branch, a tag or a commit as {where}") from error
    except errors.RemoteEntryNotFoundError as error:
        raise sentence(f"{name} has no file {TOKENIZER_FILE} at the revision {revision!r}; name another") from error
    except errors.HFValidationError as error:
        raise sentence(f"{name!r} is no name of the Hugging Face Hub; write owner/name") from error
    # Whatever is left (no network, a proxy, offline mode, a broken server) says that the Hub cannot be asked.
    except Exception as error:
        raise sentence(
            f"the Hugging Face Hub cannot be reached for {name} ({reason(error.__cause__ or error)}); check the "
            f"network, or {way_out}"
        ) from error


def reason(error: BaseException) -> str:
    """What an error says, on one line and not long."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def described(settings: DataSettings) -> str:
    """The dataset in a few words: name, configuration, split, revision, tokens."""
    words = [settings.dataset]
    words += [f"configuration {settings.dataset_config}"] if settings.dataset_config else []
    words += [f"split {settings.dataset_split}"]
    words += [] if is_folder(settings.dataset) else [f"revision {settings.revision or MAIN_REVISION}"]
    words += [f"the first {settings.max_tokens:,} tokens" if settings.max_tokens else "all of it"]
    return ", ".join(words)


def build_command(settings: DataSettings) -> str:
    """The command that builds the token cache of these settings ahead."""
    usual = DataSettings()
    flags = [("--dataset", settings.dataset, ""), ("--dataset-config", settings.dataset_config, "")]
    flags += [("--dataset-split", settings.dataset_split, TRAIN_SPLIT), ("--revision", settings.revision, "")]
    flags += [("--field", settings.field, usual.field), ("--tokenizer", settings.tokenizer, usual.tokenizer)]
    flags += [("--max-tokens", str(settings.max_tokens), "0"), ("--cache", settings.cache, "")]
    words = [word for flag, value, default in flags if value != default for word in (flag, value)]
    return shlex.join(["python", "-m", "storage.build_cache", *words])
