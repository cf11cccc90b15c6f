"""A trial's checkpoint: engine, intervention, bank and history in one folder that `storage.checkpoints` publishes."""

import json
import shutil
from pathlib import Path

from storage.bank.contract import StateBank
from storage.checkpoints import newest_whole, partial_folder, publish
from storage.files import write_json
from workers.context import TrialContext
from workers.training import TrainingLoop
from workers.trial_files import CHECKPOINTS, checkpoint_layout

BANK = "bank"
LOOP = "loop.json"
ENGINE = "engine"


def checkpoint_root(context: TrialContext) -> Path:
    """Folder of a trial's checkpoints."""
    return context.folder / CHECKPOINTS


def _layout(loop: TrainingLoop, context: TrialContext) -> dict[str, int]:
    return checkpoint_layout(context.world, loop.config.trial.zero_stage)


def save_trial(step: int, loop: TrainingLoop, bank: StateBank | None, context: TrialContext) -> None:
    """Write the checkpoint after `step` finished steps; called on every worker."""
    loop.background.settle()
    root = checkpoint_root(context)
    partial = partial_folder(root, step)
    if context.is_first:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    context.barrier()
    loop.engine.save_checkpoint(str(partial), tag=ENGINE, save_latest=False)
    loop.intervention.prepare_snapshot()
    if bank is not None:
        # What this worker deposited must have arrived before the first worker takes the snapshot of all rows.
        bank.flush()
    context.barrier()
    if context.is_first:
        if bank is not None:
            bank.snapshot(partial / BANK)
        write_json(partial / LOOP, {"history": loop.history, "intervention": loop.intervention.state_dict()})
        publish(root, step, context.identity, _layout(loop, context))
    context.barrier()


def resume_trial(loop: TrainingLoop, bank: StateBank | None, context: TrialContext) -> int:
    """Finished steps of the newest whole checkpoint, now loaded into the loop; 0 when there is none.

    Raises StorageError when it was written by another number of workers or at another ZeRO stage.
    """
    found = newest_whole(checkpoint_root(context), context.identity, _layout(loop, context))
    if found is None:
        return 0
    step, folder = found
    loaded, _ = loop.engine.load_checkpoint(str(folder), tag=ENGINE)
    if loaded is None:
        raise RuntimeError(f"DeepSpeed could not load the checkpoint {folder}")
    kept = json.loads((folder / LOOP).read_text())
    loop.history[:] = kept["history"]
    loop.intervention.load_state_dict(kept["intervention"])
    if bank is not None and context.is_first:
        bank.restore(folder / BANK)
    context.barrier()
    return step
