"""The training windows of a trial: which order its arm reads the text in. Imports no torch: the planner asks too."""

from storage.batch_order import StreamOrder, WindowOrder
from storage.token_cache import TokenCache
from workers.arms import ARMS
from workers.settings import TrialConfig


def training_order(config: TrialConfig, cache: TokenCache) -> WindowOrder | StreamOrder:
    """Shuffled windows of the train split, or those that read on. Raises StorageError when no document holds one."""
    kind = StreamOrder if ARMS[config.arm].reads_on else WindowOrder
    return kind(cache, context=config.window, rows=config.batch_rows, seed=config.trial.seed)
