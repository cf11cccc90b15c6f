"""Small datasets in the layout of the Pile on the Hub: `train/*.jsonl.zst`, a column of text and one beside it."""

import json
from collections.abc import Sequence
from pathlib import Path

import zstandard


def pile_texts(count: int) -> list[str]:
    """Texts of 8 to 64 characters, no two alike, one of them empty."""
    return [f"doc {number} " + "xyz " * (number * 7 % 14) if number != 5 else "" for number in range(count)]


def make_pile(folder: Path, texts: Sequence[str], files: int = 3) -> Path:
    """Write `texts` in order to so many files of `folder`."""
    (folder / "train").mkdir(parents=True)
    each = -(-len(texts) // files)
    for index in range(files):
        rows = [{"text": text, "meta": {"n": index}} for text in texts[index * each : (index + 1) * each]]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "train" / f"{index:02d}.jsonl.zst").write_bytes(zstandard.compress(lines.encode()))
    return folder
