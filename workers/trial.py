"""One trial from its base to its curves: `train(config, context)`, the same for one worker and for many."""

import shutil
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from models.checkpoints import load_checkpoint, save_checkpoint
from models.interface import RecurrentLanguageModel
from models.registry import build_model
from models.shipped import checkpoint_folder
from storage.bank.contract import StateBank
from storage.bank.layout import BankLayout
from storage.batch_order import WindowOrder
from storage.curve_files import write_curve
from storage.files import write_json
from storage.token_cache import TokenCache, open_token_cache
from workers.arms import ARMS
from workers.checkpointing import checkpoint_root, resume_trial, save_trial
from workers.context import TrialContext
from workers.engine import build_engine, plain_weights
from workers.evaluations.perplexity import evaluate_splits
from workers.evaluations.windows import evaluation_splits
from workers.interventions import InterventionContext, build_intervention
from workers.settings import FRESH_BASE, TrialConfig
from workers.shapes import model_dims, vocab_size
from workers.state_vector import StateVector
from workers.training import TrainingLoop
from workers.trial_files import HISTORY, MODEL, RESULT

if TYPE_CHECKING:
    from deepspeed.runtime.engine import DeepSpeedEngine

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


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
    context.report({"phase": "loading", "at": 0, "of": config.trial.steps, "history": []})
    cache = open_token_cache(config.data, context.cache)
    model = load_base(config, context.device)
    loaded = time.perf_counter()
    history: list[dict[str, float]] = []
    if ARMS[config.arm].trains:
        model, history = _post_train(config, context, cache, model)
    # Every arm is measured in the precision that trained arms have, the untouched base too.
    model = model.to(DTYPES[config.trial.precision])
    trained = time.perf_counter()
    curves = evaluate_splits(model, evaluation_splits(config, cache), config, context)
    seconds = {
        "loading": loaded - started,
        "training": trained - loaded,
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
    }
    if context.is_first:
        for split, curve in curves.items():
            write_curve(context.folder / f"{split}.parquet", curve)
        write_json(context.folder / HISTORY, history)
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


def _open_bank(config: TrialConfig, context: TrialContext, vector: StateVector) -> StateBank | None:
    if not ARMS[config.arm].uses_bank:
        return None
    layout = BankLayout(
        rows=config.trial.rows,
        elements=vector.elements,
        wire_dtype=config.bank.wire_dtype,
        groups=tuple(vector.groups()),
    )
    return context.open_bank(layout)


def _post_train(
    config: TrialConfig, context: TrialContext, cache: TokenCache, model: RecurrentLanguageModel
) -> tuple[RecurrentLanguageModel, list[dict[str, float]]]:
    """The steps of the trial, continued from its newest whole checkpoint; (trained model, history)."""
    trial = config.trial
    vector = StateVector(model.state_spec(), config.intervention.parts)
    bank = _open_bank(config, context, vector)
    try:
        intervention = build_intervention(
            config.arm,
            InterventionContext(
                settings=config.intervention,
                vector=vector,
                zero_state=lambda rows: model.zero_state(rows, device=context.device),
                rows=trial.rows,
                seed=trial.seed,
                bank=bank,
            ),
        )
        batches = WindowOrder(cache, split="train", context=trial.context, rows=trial.rows, seed=trial.seed)
        engine = build_engine(model, config, context.world)
        loop = TrainingLoop(engine, intervention, batches, config, context)
        first = resume_trial(loop, bank, context)
        for step in range(first, trial.steps):
            loop.step(step)
            done = step + 1
            if config.eval.every and done % config.eval.every == 0:
                loop.history[-1] |= _select_perplexity(_plain_model(config, context, engine), config, context, cache)
            if loop.is_report_due(done):
                context.report(loop.progress(done))
            if trial.checkpoint_every and done % trial.checkpoint_every == 0:
                save_trial(done, loop, bank, context)
        if bank is not None:
            loop.history[-1]["bank_zeroed_rows"] = bank.counters()["zeroed_rows"]
        return _plain_model(config, context, engine), loop.history
    finally:
        if bank is not None:
            bank.close()
