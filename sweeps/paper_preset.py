"""The preset `paper`, which the sweeps share: the published Mamba-2 130M on the paper's recipe (arXiv:2507.02782)."""

from pathlib import Path
from typing import Any

from sweeps.settings import SettingError, Settings

PUBLISHED = "mamba2-130m"
"""Local folder of the published base: state-spaces/mamba2-130m."""
PUBLISHED_TOKENIZER = "tokenizer.json"
"""Local file of its tokenizer, that of GPT-NeoX."""

PAPER: dict[str, Any] = {
    "model.size": "130m",
    "base.checkpoint": PUBLISHED,
    "data.tokenizer": PUBLISHED_TOKENIZER,
    "data.packing": "eos",
    "trial.context": 2048,
    "trial.rows": 256,
    "trial.micro_rows": 8,
    "trial.precision": "bf16",
    "optimizer.peak_lr": 3e-4,
    "optimizer.min_lr": 1e-5,
    "eval.length": 32768,
    "eval.windows": 64,
    "eval.select_windows": 32,
    "eval.chunk": 4096,
}


def require_published(settings: Settings) -> None:
    """Raise SettingError while a file that the preset names, and that cannot be shipped, is not here."""
    tokenizer = Path(settings.data.tokenizer)
    missing = [PUBLISHED] if settings.base.checkpoint == PUBLISHED else []
    if tokenizer == Path(PUBLISHED_TOKENIZER).absolute() and not tokenizer.is_file():
        missing.append(PUBLISHED_TOKENIZER)
    if missing:
        raise SettingError(
            f"the preset paper needs files that are not shipped, and {' and '.join(missing)} cannot be found in "
            f"{Path.cwd()}: fetch the published state-spaces/mamba2-130m (config.json and weights) and its GPT-NeoX "
            "tokenizer.json, and write --set base.checkpoint=FOLDER --set data.tokenizer=FOLDER/tokenizer.json --set "
            "data.files=FILES, with long documents for windows of eval.length tokens"
        )
