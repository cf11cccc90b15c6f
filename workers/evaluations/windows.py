"""The evaluation windows of a trial, by split: the same for every arm. Imports no torch: the driver checks them too."""

from storage.splits import APART
from storage.token_cache import TokenCache
from storage.windows import EvaluationWindow, evaluation_windows
from workers.settings import TrialConfig


def evaluation_splits(config: TrialConfig, cache: TokenCache) -> dict[str, list[EvaluationWindow]]:
    """The windows of each split that this trial measures."""
    settings = config.eval
    counts = {"select": settings.select_windows, "report": settings.windows}
    if settings.apart_windows and APART in cache.splits:
        counts[APART] = settings.apart_windows
    return {split: evaluation_windows(cache, split, settings.length, count) for split, count in counts.items()}
