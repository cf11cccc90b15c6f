"""The preset `paper`, which the sweeps share: published checkpoints on the paper's recipe (arXiv:2507.02782).

Known from the paper: context 2048 for the Mambas, 512 for GLA, 256 for RWKV-6; 0.5M tokens a step; AdamW with betas
(0.9, 0.95), gradient clip 1.0, 10 % warm-up, cosine to 1e-5; post-training at a tenth of the base's peak rate; the
Pile, packed, with the tokenizer of GPT-NeoX. Ours, because the paper does not say: the peak rates of each size (those
of Mamba-2's recipe, five times GPT-3's), weight decay 0.1, the schedule's end in post-training, the numbers of
evaluation windows, bf16 with fp32 states, and the seeds. The Pile itself is no longer offered; its stand-in is the
uncopyrighted part (monology/pile-uncopyrighted), so levels of perplexity shift a little.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeps.places import PUBLISHED_BASES
from sweeps.settings import Settings
from workers.settings import TrialConfig

TOKENIZER = "EleutherAI/gpt-neox-20b/tokenizer.json"
PILE = "monology/pile-uncopyrighted/train/*.jsonl.zst"

PAPER: dict[str, Any] = {
    "model.size": "130m",
    "data.files": (PILE,),
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


def missing_files(configs: Sequence[TrialConfig]) -> list[str]:
    """What the trials need of published files that are not below the current folder, a sentence each."""
    bases = {config.base.checkpoint for config in configs} & set(PUBLISHED_BASES.values())
    lost = [
        f"the published {name} (config.json and weights) in the folder {name}, or --set base.checkpoint=FOLDER"
        for name in sorted(bases)
        if not Path(name).is_dir()
    ]
    data = configs[0].data
    tokenizer, pile = Path(TOKENIZER).absolute(), str(Path(PILE).absolute())
    if data.tokenizer == str(tokenizer) and not tokenizer.is_file():
        lost.append(f"its GPT-NeoX tokenizer.json as {TOKENIZER}, or --set data.tokenizer=FOLDER/tokenizer.json")
    if pile in data.files and not list(Path.cwd().glob(PILE)):
        lost.append(
            f"the text as {PILE}, or --set data.files=FILES, with long documents for windows of eval.length tokens"
        )
    return lost
