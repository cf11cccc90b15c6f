"""Whether a command can go on with the unfinished trials that its folder holds. Imports neither torch nor ray."""

from pathlib import Path

from storage.checkpoints import check_newest_layout
from storage.errors import StorageError
from sweeps.folder import SweepFolder
from sweeps.planned import SweepPlan
from sweeps.settings import SettingError
from workers.trial_files import CHECKPOINTS, RESULT, checkpoint_layout


def check_continuation(plan: SweepPlan, root: Path) -> None:
    """Raise SettingError when a trial has a checkpoint that another number of workers or ZeRO stage wrote.

    Neither is part of a trial's identity, so the folder is the same; but DeepSpeed cannot load such a checkpoint, and
    steps that were made must not be lost in silence.
    """
    folder = SweepFolder(root, plan)
    for trial in plan.trials:
        settings = trial.config.trial
        if (folder.trial(trial) / RESULT).is_file():
            continue
        try:
            check_newest_layout(
                folder.trial(trial) / CHECKPOINTS,
                trial.identity,
                checkpoint_layout(settings.workers, settings.zero_stage),
            )
        except StorageError as error:
            raise SettingError(f"{trial.label} cannot go on: {error}, or add --fresh to start anew") from error
