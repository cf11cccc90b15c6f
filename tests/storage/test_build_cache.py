"""The command that builds a token cache ahead, as a process of its own: killed, continued, refused, fed by a server."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from storage.settings import DataSettings
from storage.token_cache import DOCUMENTS, OFFSETS, SIDECAR, TOKENS, open_token_cache
from tests.storage.dataset_makers import make_pile, pile_texts
from tests.storage.dataset_server import COMMIT, Hub, serve
from tests.tokenizer_makers import make_tokenizer

ROOT = Path(__file__).parents[2]
# Tests run offline; the served ones may reach the server of this machine alone.
OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")


def start(*flags: str, variables: dict[str, str] | None = None) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not variables or name not in OFFLINE}
    return subprocess.Popen(
        [sys.executable, "-m", "storage.build_cache", *flags],
        cwd=ROOT,
        env={**kept, **(variables or {})},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    output, errors = process.communicate(timeout=580)
    return process.returncode, output, errors


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_build_that_is_killed_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    pile = make_pile(tmp_path / "pile", pile_texts(10_000))
    flags = ("--dataset", str(pile), "--max-tokens", "250000", "--shard-tokens", "1")
    process = start(*flags, "--cache", str(tmp_path / "killed"))
    deadline = time.monotonic() + 250
    while len(shards := list((tmp_path / "killed").glob("*.shards/shard-*.parquet"))) < 10:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    kept = len(list((tmp_path / "killed").glob("*.shards/shard-*.parquet")))
    assert len(shards) <= kept < 100, "it was killed in the middle"

    code, output, errors = finish(start(*flags, "--cache", str(tmp_path / "killed")))
    assert code == 0 and f"{kept} shards are here already" in errors, errors
    settings = DataSettings(dataset=str(pile), max_tokens=250_000)
    whole = open_token_cache(settings, tmp_path / "whole").folder
    again = tmp_path / "killed" / whole.name
    for name in (TOKENS, OFFSETS, DOCUMENTS, SIDECAR):
        assert (again / name).read_bytes() == (whole / name).read_bytes(), name
    assert f"token cache: {again}" in output and not list((tmp_path / "killed").glob("*.shards"))


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--dataset", "a/b", "--files", "c.txt"], "data.dataset=a/b and data.files=c.txt are both set"),
        (["--max-tokens", "5"], "data.max_tokens is 5, but data.dataset is not set"),
        (["--dataset", "a/b", "--shard-tokens", "0"], "--shard-tokens is 0; write a number of at least 1"),
        (["--dataset", "a/b"], "the Hugging Face Hub cannot be reached for a/b"),
    ],
    ids=["both", "alone", "shard", "offline"],
)
def test_mistakes_are_one_line_and_exit_code_2(flags: list[str], sentence: str, tmp_path: Path) -> None:
    code, output, errors = finish(start(*flags, "--cache", str(tmp_path / "cache")))
    assert code == 2 and not output and errors.startswith("error: ") and errors.count("\n") == 1
    assert sentence in errors and not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_dataset_of_the_hub_is_built_from_its_files_and_its_refusals_are_told(tmp_path: Path) -> None:
    texts = pile_texts(300)
    pile = make_pile(tmp_path / "pile", texts)
    make_tokenizer(tmp_path / "neox" / "tokenizer.json")
    served = Hub({"lab/pile": pile, "lab/neox": tmp_path / "neox", "lab/gated": pile}, gated=frozenset({"lab/gated"}))
    cache = ("--cache", str(tmp_path / "cache"))
    with serve(served) as hub:
        variables = hub.environment(tmp_path / "home")
        command = ("--dataset", "lab/pile", "--tokenizer", "lab/neox", *cache)
        code, output, errors = finish(start(*command, variables=variables))
        assert code == 0, errors
        refused = {
            flags: finish(start(*flags, *cache, variables=variables))
            for flags in (
                ("--dataset", "lab/gated"),
                ("--dataset", "lab/pile", "--revision", "5" * 40),
            )
        }
    for words in (
        "dataset=lab/pile",
        f"revision={COMMIT}",
        f"cache={tmp_path / 'cache'}",
        f"tokenizer=lab/neox@{COMMIT}",
    ):
        assert f" --set data.{words}" in output, output
    sentences = ("is gated", "has no revision '5555")
    for sentence, (code, _, errors) in zip(sentences, refused.values(), strict=True):
        assert code == 2 and errors.count("\n") == 1 and sentence in errors, refused

    folder = next(path for path in (tmp_path / "cache").iterdir() if (path / SIDECAR).is_file())
    local = DataSettings(dataset=str(pile), tokenizer=str(tmp_path / "neox" / "tokenizer.json"))
    same = open_token_cache(local, tmp_path / "local")
    assert (folder / TOKENS).read_bytes() == (same.folder / TOKENS).read_bytes()
    assert same.tokenizer.decode(same.tokens) == "".join(texts)
