"""The preset `paper`, which the sweeps share: published checkpoints on the paper's recipe (arXiv:2507.02782).

Known from the paper: context 2048 for the Mambas, 512 for GLA, 256 for RWKV-6; 0.5M tokens a step; AdamW with betas
(0.9, 0.95), gradient clip 1.0, 10 % warm-up, cosine to 1e-5; post-training at a tenth of the base's peak rate; the
Pile, packed, with the tokenizer of GPT-NeoX. Ours, because the paper does not say: the peak rates of each size (those
of Mamba-2's recipe, five times GPT-3's), weight decay 0.1, the schedule's end in post-training, the numbers of
evaluation windows, bf16 with fp32 states, and the seeds.

The Pile itself (EleutherAI/pile) is no longer offered: its files were taken down. The stand-in is its part without the
contested texts, streamed from monology/pile-uncopyrighted; so levels of perplexity are not the paper's to the digit.
"""

import math
from collections.abc import Mapping
from typing import Any

from storage.splits import FRACTIONS, TRAIN
from sweeps.settings import Settings

PILE = "monology/pile-uncopyrighted"
PILE_COMMIT = "3be90335b66f24456a5d6659d9c8d208c0357119"
TOKENIZER = "EleutherAI/gpt-neox-20b@c292233c833e336628618a88a648727eb3dff0a7"

PAPER: dict[str, Any] = {
    "model.size": "130m",
    "data.dataset": PILE,
    "data.revision": PILE_COMMIT,
    # 70 % of it is for training: enough for 1000 steps of 0.5M without a repetition.
    "data.max_tokens": 1_000_000_000,
    "data.cache": "token_cache",
    "data.tokenizer": TOKENIZER,
    "data.packing": "eos",
    "trial.context": 2048,
    "trial.rows": 256,
    "trial.micro_rows": 8,
    "trial.precision": "bf16",
    "trial.device": "cuda",
    "optimizer.peak_lr": 3e-4,
    "optimizer.min_lr": 1e-5,
    "eval.length": 32768,
    "eval.windows": 64,
    "eval.select_windows": 32,
    "eval.chunk": 4096,
}

AT_SIZE = {"trial.workers": 4, "trial.micro_rows": 2}
"""For sweeps that go up to 1.3B: what every arm of it needs to fit on GPUs of 80 GiB; the states of its rows do not fit
on one. See docs/paper_scale.md."""

BASE_RATES = {"45m": 3e-3, "85m": 3e-3, "125m": 3e-3, "130m": 3e-3, "70m": 3e-3} | {
    size: rate
    for sizes, rate in (
        (("370m",), 1.5e-3),
        (("780m", "790m"), 1.25e-3),
        (("1.3b", "1.4b"), 1e-3),
        (("2.7b", "2.8b"), 8e-4),
    )
    for size in sizes
}
"""Peak rates of training from scratch by size; ours, see above."""

CONTEXTS = {"mamba1": (2048, 256), "mamba2": (2048, 256), "gla": (512, 1024), "rwkv6": (256, 2048)}
"""Context and rows of a step of 0.5M tokens."""


def tokens_of_text(trained: int) -> int:
    """`data.max_tokens`, in whole billions, of which the training split holds so many tokens, with 2 % to spare."""
    low, high = FRACTIONS[TRAIN]
    return math.ceil(1.02 * trained / (high - low) / 1e9) * 1_000_000_000


def post_training_rate(settings: Settings, size: str) -> float:
    """A tenth of the peak rate of this size's base; the settings' where that is not known or the user chose one."""
    own = settings.optimizer.peak_lr
    return round(BASE_RATES[size] / 10, 9) if size in BASE_RATES and own == PAPER["optimizer.peak_lr"] else own


def of_paper(architecture: str, size: str) -> dict[str, Any]:
    """What the paper's recipe changes for a model: its rate, a tenth of the base's, its context and its rows."""
    context, rows = CONTEXTS[architecture]
    return {
        "model.architecture": architecture,
        "model.size": size,
        "optimizer.peak_lr": round(BASE_RATES[size] / 10, 9),
        "trial.context": context,
        "trial.rows": rows,
    }


def untouched(changes: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Of the changes, those whose setting still has the value of the preset or the default: a user's choice stays."""
    kept, usual = {}, Settings()
    for key, value in changes.items():
        group, name = key.split(".")
        if getattr(getattr(settings, group), name) == PAPER.get(key, getattr(getattr(usual, group), name)):
            kept[key] = value
    return kept
