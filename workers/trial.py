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
from models.registry import build_model, kernel_record, model_of
from models.shipped import checkpoint_folder
from storage.bank.contract import StateBank
from storage.curve_files import write_curve
from storage.curves import Curve
from storage.files import write_json
from storage.measurements import write_measurements
from storage.settings import BYTES_NAME
from storage.token_cache import TokenCache, open_token_cache
from storage.tokenizer_file import read_tokenizer_file
from workers.arms import ARMS
from workers.assembly import assemble_intervention, bank_record, open_bank
from workers.bank_plan import state_parts
from workers.checkpointing import checkpoint_root, resume_trial, save_trial
from workers.context import TrialContext
from workers.engine import build_engine, plain_weights
from workers.evaluations.diagnostics import run_diagnostics
from workers.evaluations.perplexity import evaluate_splits
from workers.evaluations.trained_states import TrainedOn, trained_on
from workers.evaluations.windows import evaluation_splits
from workers.memory import keep_freed_memory
from workers.settings import FRESH_BASE, TrialConfig
from workers.shapes import model_dims, vocab_size
from workers.state_vector import StateVector
from workers.training import TrainingLoop
from workers.training_windows import training_order
from workers.trial_files import HISTORY, MODEL, RESULT, kept_model

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
    trained_on: TrainedOn | None = None
    """States that training started from or passed through, for `coverage`."""
    diagnostics: float = 0.0
    """Seconds that those states took."""

    def take_states(self, *where_from: Any) -> None:
        """Keep what `trained_on` finds, and how long it took."""
        started = time.perf_counter()
        self.trained_on = trained_on(*where_from)
        self.diagnostics = time.perf_counter() - started


def load_base(config: TrialConfig, device: torch.device) -> RecurrentLanguageModel:
    """The checkpoint that the trial starts from, or a fresh initialisation keyed by `base.seed`."""
    if config.base.checkpoint == FRESH_BASE:
        return build_model(config.model, vocab_size(config), config.base.seed, config.trial.device).to(device)
    folder = checkpoint_folder(config.base.checkpoint, config.base.revision)
    return load_checkpoint(folder, model_dims(config), device=device, kernel=config.kernel)


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
    model = model.in_precision(DTYPES[config.trial.precision])
    if not ARMS[config.arm].trains:
        training.take_states(config, context, model, training_order(config, cache), None)
    trained = time.perf_counter()
    splits = evaluation_splits(config, cache)
    curves = evaluate_splits(model, splits, config, context)
    evaluated = time.perf_counter()
    diagnostics, left_out = run_diagnostics(model, splits["report"], config, context, training.trained_on)
    seconds = {
        "loading": loaded - started,
        "training": training.before + trained - loaded - training.checkpoints - training.diagnostics,
        "checkpoints": training.checkpoints,
        "evaluation": evaluated - trained,
        "diagnostics": time.perf_counter() - evaluated + training.diagnostics,
    }
    result = {
        "arm": config.arm,
        "identity": context.identity,
        "config": config.to_dict(),
        "seconds": seconds,
        "curves": {split: f"{split}.parquet" for split in curves},
        "diagnostics": {table.name: f"{table.name}.parquet" for table in diagnostics},
        "diagnostics_left_out": left_out,
        "kernel": config.kernel,
        "kernel_packages": kernel_record(config.model.architecture, config.kernel),
        "device": str(context.device),
        "workers": dist.get_world_size(),
        "backend": dist.get_backend(),
        "bank": training.bank,
        "intervention": training.intervention,
    }
    if context.is_first:
        for split, curve in curves.items():
            write_curve(context.folder / f"{split}.parquet", curve)
        for table in diagnostics:
            write_measurements(context.folder / f"{table.name}.parquet", table)
        write_json(context.folder / HISTORY, training.history)
        if ARMS[config.arm].trains:
            _save_model(model, MODEL, config.trial.steps, config, context)
        write_json(context.folder / RESULT, result)
        shutil.rmtree(checkpoint_root(context), ignore_errors=True)
    return result


def _plain_model(config: TrialConfig, context: TrialContext, engine: "DeepSpeedEngine") -> RecurrentLanguageModel:
    """The trained model outside its engine, whole on every worker, in the precision it was trained in."""
    if config.trial.zero_stage < 3:
        return engine.module.model
    # Its own dimensions, not those of the size: padding and norms follow the checkpoint that it was read from.
    model = model_of(engine.module.model.dims, seed=0, kernel=config.kernel)
    model.load_state_dict(plain_weights(engine))
    return model.to(context.device).in_precision(DTYPES[config.trial.precision])


def _save_model(
    model: RecurrentLanguageModel, name: str, steps: int, config: TrialConfig, context: TrialContext
) -> None:
    """Write the model after so many steps into the trial's folder, with a note of what made it."""
    if context.is_first:
        made_by = {"arm": config.arm, "steps": steps, "identity": context.identity}
        tokenizer = None if config.data.tokenizer == BYTES_NAME else read_tokenizer_file(config.data.tokenizer).path
        save_checkpoint(model, model.dims, context.folder / name, {"made_by": made_by}, tokenizer)


def _select_curve(
    model: RecurrentLanguageModel, config: TrialConfig, context: TrialContext, cache: TokenCache
) -> Curve:
    """The curve of the model as it stands on the select split, whole on every worker."""
    windows = evaluation_splits(config, cache)["select"]
    return evaluate_splits(model, {"select": windows}, config, context)["select"]


def _select_entries(curve: Curve) -> dict[str, float]:
    """Entries of the history: PPL@train, PPL@8K and the mean NLL past the training length, as far as windows reach."""
    entries = {name: curve.table()[name] for name in ("ppl_train", "ppl_8k")}
    if curve.length > curve.train_length:
        nll_W, count_W = curve.window_range_nll(curve.train_length, curve.length)
        entries["far_nll"] = float(nll_W.sum() / count_W.sum())
    return {f"select_{name}": value for name, value in entries.items() if value is not None}


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
        model = _plain_model(config, context, loop.engine)
        # The last that the intervention is asked for: what it and the bank hold has been recorded.
        training.take_states(config, context, model, batches, intervention)
        return model, training


def _after_step(done: int, loop: TrainingLoop, bank: StateBank | None, cache: TokenCache, training: "Training") -> None:
    """Evaluation on the select split, report and checkpoint, each where it is due after `done` steps."""
    config, context = loop.config, loop.context
    if config.eval.every and done % config.eval.every == 0:
        curve = _select_curve(_plain_model(config, context, loop.engine), config, context, cache)
        loop.history[-1] |= _select_entries(curve)
        context.report(loop.evaluated(done, curve))
    elif loop.is_report_due(done):
        context.report(loop.progress(done))
    if done in config.trial.keep_models:
        _save_model(_plain_model(config, context, loop.engine), kept_model(done), done, config, context)
    if config.trial.checkpoint_every and done % config.trial.checkpoint_every == 0:
        started = time.perf_counter()
        save_trial(done, loop, bank, context)
        training.checkpoints += time.perf_counter() - started
