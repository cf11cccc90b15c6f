"""`python -m storage.build_cache`: build a token cache ahead, for streamed text that takes long to fetch.

It takes the `data.*` settings as flags, and ends with the `--set` words under which a sweep finds the cache. Stopped at
any moment, the same command goes on from the last whole shard. Exit codes: 0 done, 2 usage, text or network, 130
interrupted. stdout carries what the cache holds, stderr carries progress and errors.
"""

import argparse
import dataclasses
import shlex
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from storage.errors import StorageError
from storage.settings import BYTES_NAME, TRAIN_SPLIT, DataSettings

if TYPE_CHECKING:
    from storage.token_cache import TokenCache

USAGE_ERROR = 2
INTERRUPTED = 130
DEFAULT_CACHE = "token_cache"


def parser() -> argparse.ArgumentParser:
    """The flags of `python -m storage.build_cache`."""
    flags = argparse.ArgumentParser(
        prog="python -m storage.build_cache",
        description="Build a token cache ahead, or continue building it. Each flag is the setting data.* of that name.",
        epilog="exit codes: 0 done, 2 usage, text or network, 130 interrupted",
    )
    flags.add_argument("--dataset", default="", metavar="NAME", help="owner/name on the Hugging Face Hub, or a folder")
    flags.add_argument("--dataset-config", default="", metavar="NAME", help="its configuration, where it has several")
    flags.add_argument("--dataset-split", default=TRAIN_SPLIT, metavar="NAME", help="its split (default train)")
    flags.add_argument("--revision", default="", metavar="NAME", help="branch, tag or commit (default main)")
    flags.add_argument("--max-tokens", type=int, default=0, metavar="N", help="take so many tokens (default: all)")
    flags.add_argument("--files", nargs="+", default=(), metavar="FILE", help="files or globs, in place of a dataset")
    flags.add_argument("--field", default="text", metavar="NAME", help="column that holds the text (default text)")
    flags.add_argument("--tokenizer", default=BYTES_NAME, metavar="NAME", help="bytes, a tokenizer.json, or owner/name")
    flags.add_argument("--cache", default=DEFAULT_CACHE, metavar="DIR", help=f"where (default {DEFAULT_CACHE})")
    flags.add_argument("--shard-tokens", type=int, default=2**22, metavar="N", help="kept at once (default 4M tokens)")
    return flags


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    given = vars(parser().parse_args(arguments))
    shard_tokens = given.pop("shard_tokens")
    try:
        if shard_tokens < 1:
            raise StorageError(f"--shard-tokens is {shard_tokens}; write a number of at least 1")
        settings = DataSettings(**{**given, "files": tuple(given["files"])})
        from storage.hub import pinned_data
        from storage.token_cache import open_token_cache

        settings = pinned_data(settings)
        cache = open_token_cache(settings, settings.cache, say=_timed(), shard_tokens=shard_tokens)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from the last whole shard", file=sys.stderr)
        return INTERRUPTED
    _show(cache, settings)
    return 0


def _timed() -> Callable[[str], None]:
    started = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - started:7.0f} s  {line}", file=sys.stderr, flush=True)

    return say


def _show(cache: "TokenCache", settings: DataSettings) -> None:
    print(f"token cache: {cache.folder}")
    for split in sorted(set(cache.splits)):
        documents = cache.documents_of(split)
        tokens = int((cache.offsets[documents + 1] - cache.offsets[documents]).sum())
        print(f"  {split:<7} {tokens:>15,} tokens  {len(documents):>11,} documents")
    print("a sweep reads it with " + " ".join(f"--set {word}" for word in _words(settings)))


def _words(settings: DataSettings) -> list[str]:
    """`data.NAME=VALUE` of each setting that is not the usual one."""
    usual, words = DataSettings(), []
    for name in (one.name for one in dataclasses.fields(settings)):
        value = getattr(settings, name)
        if value != getattr(usual, name):
            words.append(shlex.quote(f"data.{name}={','.join(value) if isinstance(value, tuple) else value}"))
    return words


if __name__ == "__main__":
    sys.exit(main())
