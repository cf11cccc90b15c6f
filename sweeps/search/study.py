"""The Optuna study of a search: its store, its name, its sampler and its pruner.

Only the driver talks to the store. Heartbeats would be of no use: Optuna sends them within `optimize` alone; what a
killed driver left RUNNING is settled by `sweeps.search.ledger` instead.
"""

import warnings
from pathlib import Path

import numpy as np
import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

from sweeps.search.plan import SearchPlan
from sweeps.settings import SettingError

STUDY = "study.db"
"""The default store, in the sweep's folder."""
_PATIENCE_SECONDS = 100
"""How long a SQLite store that a dashboard is reading is waited for."""


def store_url(folder: Path, store: str | None) -> str:
    """Where the study of the search in `folder` lies: as given, or in a SQLite file of its own there."""
    return store or f"sqlite:///{folder / STUDY}"


def open_storage(url: str) -> BaseStorage:
    """The store at `url`: `journal:FILE`, or a database. Raises SettingError when it cannot be opened."""
    try:
        if url.startswith("journal:"):
            path = url.removeprefix("journal:")
            return JournalStorage(JournalFileBackend(path, lock_obj=JournalFileOpenLock(path)))
        arguments = {"connect_args": {"timeout": _PATIENCE_SECONDS}} if url.startswith("sqlite:") else {}
        return RDBStorage(url, engine_kwargs=arguments)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise SettingError(
            f"the store of the study {url} cannot be opened: {reason}; choose another --store"
        ) from error


def study_name(plan: SearchPlan, sweep_id: str) -> str:
    """One study for each folder of a search: `sweep_id` ends in the folder's own number."""
    folder_id = sweep_id.rpartition("-")[2]
    return f"search-{plan.space.name}-{plan.objective.name}-{plan.identity[:8]}-{folder_id}"


def open_study(plan: SearchPlan, storage: BaseStorage, name: str) -> optuna.Study:
    """The study of that name, continued or made."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        study_name=name,
        storage=storage,
        directions=[optuna.study.StudyDirection[one.upper()] for one in plan.objective.directions],
        pruner=make_pruner(plan),
        load_if_exists=True,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names(list(plan.objective.names))
    return study


def make_pruner(plan: SearchPlan) -> optuna.pruners.BasePruner:
    """Asynchronous successive halving on steps, whose rungs lie in the study and so survive a kill.

    The first rung is the first evaluation, each next one `search.reduction` times as late. Ray's own scheduler keeps
    its rungs in memory: a continued search would compare with nothing.
    """
    if not plan.stops_early:
        return optuna.pruners.NopPruner()
    settings = plan.settings
    return optuna.pruners.SuccessiveHalvingPruner(
        min_resource=settings.eval.every, reduction_factor=settings.search.reduction, min_early_stopping_rate=0
    )


def make_sampler(seed: int, number: int) -> optuna.samplers.BaseSampler:
    """The sampler of the study's trial of this number: TPE with a seed of its own.

    A sampler seeded once would repeat its first suggestions whenever a search is continued. With one for each trial,
    the suggestion depends on the seed and on the trials before it, not on how often the search was interrupted.
    """
    own = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
    with warnings.catch_warnings():
        # `group` is what conditional spaces need: settings of one arm are learnt from its trials together.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(seed=own, multivariate=True, group=True)
