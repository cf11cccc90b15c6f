"""A whole small trial with a tokenizer read from a file: vocabulary, unit and bits per byte."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from storage.curve_files import read_curve
from storage.documents import read_documents
from storage.settings import DataSettings
from storage.splits import SELECT, split_of, text_hash
from tests.tokenizer_makers import VOCABULARY, make_tokenizer
from workers.context import TrialContext
from workers.settings import TrialConfig
from workers.trial import train

TrialMaker = Callable[..., TrialConfig]
ContextMaker = Callable[..., TrialContext]


def opening_pages() -> list[str]:
    """The beginnings of the shipped speeches, long enough for windows of 128 tokens and short enough to be quick."""
    return [document.text[:2000] for document in read_documents(DataSettings()) if not document.apart]


def test_a_trial_with_a_tokenizer_file_runs_to_curves_in_its_tokens(
    small_trial: TrialMaker, make_context: ContextMaker, tmp_path: Path
) -> None:
    tokenizer, texts = make_tokenizer(tmp_path / "tokenizer.json"), tmp_path / "texts.jsonl"
    pages = opening_pages()
    texts.write_text("".join(json.dumps({"text": page}) + "\n" for page in pages))
    data = DataSettings(files=(str(texts),), tokenizer=str(tokenizer))
    context = make_context()
    train(dataclasses.replace(small_trial("zero"), data=data), context)

    written = json.loads((context.folder / "model" / "config.json").read_text())
    assert written["vocab_size"] == VOCABULARY
    curve = read_curve(context.folder / "select.parquet")
    assert curve.unit == "tokens" and curve.count.sum() == 2 * 128
    # A model that has learnt next to nothing is near the uniform distribution over its vocabulary.
    assert 100 < curve.range_perplexity(16, 32) < 1000

    library = Tokenizer.from_file(str(tokenizer))
    chosen = {page for page in pages if split_of(text_hash(page)) == SELECT}
    bytes_per_token = sum(len(page.encode()) for page in chosen) / sum(len(library.encode(page).ids) for page in chosen)
    assert curve.bytes_per_token == bytes_per_token and 1.5 < bytes_per_token < 4
    nats = curve.nll_sum.sum() / curve.count.sum()
    assert curve.bits_per_byte() == pytest.approx(nats / math.log(2) / bytes_per_token, rel=1e-12)
