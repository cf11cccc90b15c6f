"""The evaluation windows of a trial, by split: the same for every arm. Imports no torch: the driver checks them too."""

from storage.splits import APART
from storage.token_cache import TokenCache
from storage.windows import EvaluationWindow, evaluation_windows
from workers.settings import TrialConfig


def evaluation_splits(config: TrialConfig, cache: TokenCache) -> dict[str, list[EvaluationWindow]]:
    """The windows of each split that this trial measures."""
    settings = config.eval
    wanted = {"select": "select_windows", "report": "windows"}
    if settings.apart_windows and APART in cache.splits:
        wanted[APART] = "apart_windows"
    return {
        split: evaluation_windows(cache, split, settings.length, getattr(settings, name), f"eval.{name}")
        for split, name in wanted.items()
    }
