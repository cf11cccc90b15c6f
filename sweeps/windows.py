"""Whether the text holds the windows that a sweep asks for, checked before anything starts. Imports no torch."""

import logging
import multiprocessing
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from storage.errors import StorageError
from storage.token_cache import TokenCache, is_built, open_token_cache
from sweeps.settings import SettingError
from sweeps.text_to_fetch import text_to_fetch
from workers.arms import ARMS
from workers.evaluations.windows import evaluation_splits
from workers.settings import TrialConfig
from workers.training_windows import training_order

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WindowCheck:
    """What the text gives the sweep."""

    skipped: int
    """Training documents too short for a window of some arm."""
    report_documents: tuple[str, ...]
    """Document of each window of the report split."""


def check_windows(
    configs: Sequence[TrialConfig], cache_folder: Path, say: Callable[[str], None] = _log.info
) -> WindowCheck:
    """Build the token cache that the trials share and check that it holds their windows. Raises SettingError.

    How far the building of streamed text is goes to `say`.
    """
    try:
        cache = open_token_cache(configs[0].data, cache_folder, say=say)
        kinds = {(ARMS[config.arm].reads_on, config.window, config.batch_rows): config for config in configs}
        skipped = max(_skipped_documents(config, cache) for config in kinds.values())
        report = evaluation_splits(configs[0], cache)["report"]
    except StorageError as error:
        raise SettingError(str(error)) from error
    return WindowCheck(skipped, tuple(window.document_id for window in report))


def _skipped_documents(config: TrialConfig, cache: TokenCache) -> int:
    try:
        order = training_order(config, cache)
    except StorageError as error:
        longer = f" (trial.context={config.trial.context} x intervention.factor={config.intervention.factor})"
        raise StorageError(f"{error}{longer if config.window != config.trial.context else ''}") from error
    return order.skipped_documents


def check_windows_aside(configs: Sequence[TrialConfig]) -> WindowCheck | None:
    """`check_windows` for a dry run, which leaves nothing behind: in a folder that goes again. Raises SettingError.

    None, where the text or its tokenizer would have to be fetched first.
    In a process of its own, because the libraries that read text and tables import pandas.
    """
    data = configs[0].data
    if text_to_fetch(data):
        return None
    if data.cache and not is_built(data, data.cache):
        configs = [replace(config, data=replace(config.data, cache="")) for config in configs]
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process,
    ):
        return process.submit(check_windows, configs, Path(folder)).result()
