"""A small byte-level BPE tokenizer in the shape of GPT-NeoX's, trained on a few shipped speeches."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from storage.documents import read_documents
from storage.settings import DataSettings

VOCABULARY = 500
END_OF_TEXT = "<|endoftext|>"


def make_tokenizer(path: Path, special_tokens: tuple[str, ...] = (END_OF_TEXT,)) -> Path:
    """Train a tokenizer of `VOCABULARY` entries, special tokens first, on four speeches; save it as `path`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    speeches = itertools.islice((document.text for document in read_documents(DataSettings())), 1, 5)
    tokenizer.train_from_iterator(speeches, trainer)
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return path


def changed(path: Path, name: str, change: Callable[[dict[str, Any]], object]) -> Path:
    """Write the JSON of the tokenizer at `path`, changed in place by `change`, as `name` beside it."""
    values = json.loads(path.read_text("utf-8"))
    change(values)
    other = path.with_name(name)
    other.write_text(json.dumps(values), "utf-8")
    return other


def added_token(content: str, index: int) -> dict[str, Any]:
    """An entry of `added_tokens`, matched anywhere in the text and not special, like GPT-NeoX's runs of spaces."""
    matching = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True}
    return {"id": index, "content": content, "special": False, **matching}
