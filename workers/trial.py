"""One trial from its base to its curves: `train(config, context)`, the same for one worker and for many."""

import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from models.checkpoints import load_checkpoint, save_checkpoint
from models.interface import RecurrentLanguageModel
from models.registry import build_model
from models.shipped import checkpoint_folder
from storage.bank.contract import StateBank
from storage.curve_files import write_curve
from storage.files import write_json
from storage.token_cache import TokenCache, open_token_cache
from workers.arms import ARMS
from workers.assembly import assemble_intervention, bank_record, open_bank
from workers.bank_plan import state_parts
from workers.checkpointing import checkpoint_root, resume_trial, save_trial
from workers.context import TrialContext
from workers.engine import build_engine, plain_weights
from workers.evaluations.perplexity import evaluate_splits
from workers.evaluations.windows import evaluation_splits
from workers.memory import keep_freed_memory
from workers.settings import FRESH_BASE, TrialConfig
from workers.shapes import model_dims, vocab_size
from workers.state_vector import StateVector
from workers.training import TrainingLoop
from workers.training_windows import training_order
from workers.trial_files import HISTORY, MODEL, RESULT

if TYPE_CHECKING:
    from deepspeed.runtime.engine import DeepSpeedEngine

History = list[dict[str, Any]]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass
class Training:
    """What a trial's steps leave behind beside the model."""

    history: History
    before: float = 0.0
    """Seconds of the steps that earlier attempts made."""
    checkpoints: float = 0.0
    """Seconds of this attempt that went into checkpoints."""
    intervention: dict[str, Any] | None = None
    """What the intervention knows at the end, such as fitted means and variances."""
    bank: dict[str, Any] | None = None


def load_base(config: TrialConfig, device: torch.device) -> RecurrentLanguageModel:
    """The checkpoint that the trial starts from, or a fresh initialisation keyed by `base.seed`."""
    if config.base.checkpoint == FRESH_BASE:
        return build_model(config.model, vocab_size(config), config.base.seed).to(device)
    folder = checkpoint_folder(config.base.checkpoint)
    return load_checkpoint(folder, model_dims(config), device=device, scan=config.model.scan)


def train(config: TrialConfig, context: TrialContext) -> dict[str, Any]:
    """Run one trial to its end and return what `result.json` holds; called on every worker of the trial."""
    started = time.perf_counter()
    torch.set_num_threads(config.trial.threads)
    keep_freed_memory()
    context.report({"phase": "loading", "at": 0, "of": config.trial.steps, "history": []})
    cache = open_token_cache(config.data, context.cache)
    model = load_base(config, context.device)
    loaded = time.perf_counter()
    training = Training([])
    if ARMS[config.arm].trains:
        model, training = _post_train(config, context, cache, model)
    # Every arm is measured in the precision that trained arms have, the untouched base too.
    model = model.to(DTYPES[config.trial.precision])
    trained = time.perf_counter()
    curves = evaluate_splits(model, evaluation_splits(config, cache), config, context)
    seconds = {
        "loading": loaded - started,
        "training": training.before + trained - loaded - training.checkpoints,
        "checkpoints": training.checkpoints,
        "evaluation": time.perf_counter() - trained,
    }
    result = {
        "arm": config.arm,
        "identity": context.identity,
        "config": config.to_dict(),
        "seconds": seconds,
        "curves": {split: f"{split}.parquet" for split in curves},
        "scan": config.model.scan,
        "device": str(context.device),
        "workers": dist.get_world_size(),
        "backend": dist.get_backend(),
        "bank": training.bank,
        "intervention": training.intervention,
    }
    if context.is_first:
        for split, curve in curves.items():
            write_curve(context.folder / f"{split}.parquet", curve)
        write_json(context.folder / HISTORY, training.history)
        if ARMS[config.arm].trains:
            made_by = {"arm": config.arm, "steps": config.trial.steps, "identity": context.identity}
            save_checkpoint(model, model_dims(config), context.folder / MODEL, notes={"made_by": made_by})
        write_json(context.folder / RESULT, result)
        shutil.rmtree(checkpoint_root(context), ignore_errors=True)
    return result


def _plain_model(config: TrialConfig, context: TrialContext, engine: "DeepSpeedEngine") -> RecurrentLanguageModel:
    """The trained model outside its engine, whole on every worker, in the precision it was trained in."""
    if config.trial.zero_stage < 3:
        return engine.module.model
    model = build_model(config.model, vocab_size(config), seed=0)
    model.load_state_dict(plain_weights(engine))
    return model.to(device=context.device, dtype=DTYPES[config.trial.precision])


def _select_perplexity(
    model: RecurrentLanguageModel, config: TrialConfig, context: TrialContext, cache: TokenCache
) -> dict[str, float]:
    """PPL@train and, where the windows reach that far, PPL@8K on the select split, as entries of the history."""
    windows = evaluation_splits(config, cache)["select"]
    table = evaluate_splits(model, {"select": windows}, config, context)["select"].table()
    return {f"select_{name}": value for name in ("ppl_train", "ppl_8k") if (value := table[name]) is not None}


def _post_train(
    config: TrialConfig, context: TrialContext, cache: TokenCache, model: RecurrentLanguageModel
) -> tuple[RecurrentLanguageModel, Training]:
    """The steps of the trial, continued from its newest whole checkpoint."""
    trial = config.trial
    batches = training_order(config, cache)
    engine = build_engine(model, config, context.world)
    # After the engine has been built: it may change the dtype of the model, and so that of its state.
    vector = StateVector(model.state_spec(), state_parts(config))
    bank = open_bank(config, context, vector)
    with ExitStack() as opened:
        if bank is not None:
            opened.callback(bank.close)
        intervention = assemble_intervention(config, context, batches, vector, bank)
        loop = TrainingLoop(engine, intervention, batches, config, context)
        opened.callback(loop.background.close)
        first = resume_trial(loop, bank, context)
        training = Training(loop.history, before=sum(entry["seconds"] for entry in loop.history))
        for step in range(first, trial.steps):
            loop.step(step)
            _after_step(step + 1, loop, bank, cache, training)
        loop.background.settle()
        training.intervention = intervention.state_dict()
        training.bank = bank_record(config, context, loop, bank)
        return _plain_model(config, context, loop.engine), training


def _after_step(done: int, loop: TrainingLoop, bank: StateBank | None, cache: TokenCache, training: "Training") -> None:
    """Evaluation on the select split, report and checkpoint, each where it is due after `done` steps."""
    config, context = loop.config, loop.context
    if config.eval.every and done % config.eval.every == 0:
        loop.history[-1] |= _select_perplexity(_plain_model(config, context, loop.engine), config, context, cache)
    if loop.is_report_due(done):
        context.report(loop.progress(done))
    if config.trial.checkpoint_every and done % config.trial.checkpoint_every == 0:
        started = time.perf_counter()
        save_trial(done, loop, bank, context)
        training.checkpoints += time.perf_counter() - started
