"""How much memory each GPU of a trial needs, piece by piece, and the check before anything starts; imports no torch.

The pieces are upper bounds of what training holds at its highest point, in the forward pass's last layers and the
backward pass's first. Evaluation keeps nothing for a backward pass and needs less. docs/paper_scale.md works the
formulas through by hand. Legend: P parameters, Q of them always in fp32, s bytes of a number in the trial's precision,
N workers, B rows of a micro-batch, T window, D width, L layers, V vocabulary with its padding, k bytes that a layer
keeps per position (`ModelDims.layer_keeps`).
"""

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from models.kernels import FUSED
from sweeps.gpu_hours import gpu_json
from sweeps.gpu_settings import GpuSettings
from sweeps.planned import PlannedTrial, SweepPlan
from sweeps.resources import size
from sweeps.settings import SettingError
from workers.arms import ARMS
from workers.bank_plan import plan_bank
from workers.settings import TrialConfig
from workers.shapes import model_dims

NUMBER_BYTES = {"fp32": 4, "bf16": 2}
BUCKET = 500_000_000
"""Gradients that DeepSpeed reduces at once at the stages 2 and 3, by its default; the buffer is always that large."""
LOGITS = 2**22
"""Logits that the loss holds at once, see `models.loss`."""


@dataclass(frozen=True, kw_only=True)
class GpuMemory:
    """What one GPU of a trial holds, in bytes."""

    weights: int
    gradients: int
    optimizer: int
    """AdamW's two moments, and the fp32 copy of the weights that it moves."""
    activations: int
    """What layers keep for the backward pass, and the gradients of one layer of it; 0 where nobody has counted."""
    loss: int
    states: int
    """Initial and final states of a micro-batch."""
    bank: int
    """What the worker holds of the state bank."""

    @property
    def total(self) -> int:
        """All of it."""
        return sum(asdict(self).values())

    def as_json(self) -> dict[str, int]:
        """For the plan's JSON."""
        return {**asdict(self), "total": self.total}


def gpu_memory(config: TrialConfig) -> GpuMemory:
    """The memory that each GPU of the trial needs."""
    dims, number = model_dims(config), NUMBER_BYTES[config.trial.precision]
    weights = number * dims.parameters() + (4 - number) * dims.fp32_parameters()
    if not ARMS[config.arm].trains:
        states = dims.state_bytes(number)
        return GpuMemory(weights=weights, gradients=0, optimizer=0, activations=0, loss=0, states=states, bank=0)
    kept, gradients, optimizer = _of_parameters(config, dims.parameters(), weights)
    bank = plan_bank(config)
    return GpuMemory(
        weights=kept,
        gradients=gradients,
        optimizer=optimizer,
        activations=_activations(config),
        loss=_loss(config),
        states=2 * config.micro_rows * dims.state_bytes(number),
        bank=bank.worker_bytes if bank else 0,
    )


def _of_parameters(config: TrialConfig, parameters: int, weights: int) -> tuple[int, int, int]:
    """(weights, gradients, optimiser) of P parameters, whose weights take so many bytes, on one of N workers.

    Gradients: at the stages 0 and 1 whole; in fp32 with a flat copy of the worker's share for the step, in bf16 those
    of a backward pass in bf16 beside the sum in fp32. From stage 2 on the share's sum in fp32 (in fp32 with a copy),
    and the buffer that is reduced. Optimiser: fp32 copy and two moments, 12 P / N; at stage 0 in fp32 without the copy.
    """
    stage, low = config.trial.zero_stage, config.trial.precision == "bf16"
    share = -(-parameters // (config.trial.workers if stage else 1))
    if stage == 0:
        return weights, (6 if low else 4) * parameters, (12 if low else 8) * parameters
    if stage == 1:
        return weights, 6 * parameters if low else 4 * parameters + 4 * share, 12 * share
    gradients = (4 if low else 8) * share + NUMBER_BYTES[config.trial.precision] * BUCKET
    # At stage 3 a worker keeps its share, and beside it the weights in use: up to 1e9, by DeepSpeed's default.
    kept = weights if stage == 2 else -(-weights // config.trial.workers) + weights
    return kept, gradients, 12 * share


def _activations(config: TrialConfig) -> int:
    """B T k (L + 1); with activation checkpointing B T (4 D L + 2 k): each layer's input, and one layer at a time.

    The one more layer is for the gradients of what it keeps.
    """
    dims = model_dims(config)
    keeps = dims.layer_keeps()
    if keeps is None:
        return 0
    per_layer = keeps.bytes(NUMBER_BYTES[config.trial.precision], fused=config.kernel == FUSED)
    per_position = per_layer * (dims.n_layer + 1)
    if config.trial.activation_checkpointing:
        per_position = 4 * dims.d_model * dims.n_layer + 2 * per_layer
    return config.micro_rows * config.window * per_position


def _loss(config: TrialConfig) -> int:
    """B T D (4 + 2 s) + 8 V D + 12 * 2^22.

    Residual stream before the last norm, hidden vectors and their gradient; gradient of the output matrix in fp32,
    twice; logits of a piece, three times.
    """
    dims, number = model_dims(config), NUMBER_BYTES[config.trial.precision]
    positions = config.micro_rows * config.window
    return positions * dims.d_model * (4 + 2 * number) + 8 * dims.vocab_rows * dims.d_model + 12 * LOGITS


def gpu_part(plan: SweepPlan, trial: PlannedTrial) -> dict[str, Any]:
    """What the plan's JSON says of the GPUs of a trial; nothing for one that asks for none."""
    if not plan.needs_gpus:
        return {}
    memory, gpus = gpu_memory(trial.config).as_json(), trial.config.trial.workers
    return {"gpu": {"gpus": gpus, "memory": memory, **gpu_json(trial.config, plan.settings.gpu)}}


def check_gpu_memory(plan: SweepPlan) -> None:
    """Raise SettingError when a trial needs more memory than a GPU has to spare, with the nearest that fits."""
    gpu = plan.settings.gpu
    for trial in plan.possible:
        needs = gpu_memory(trial.config)
        if needs.total > gpu.usable_bytes:
            pieces = ", ".join(f"{name} {size(number)}" for name, number in asdict(needs).items() if number)
            raise SettingError(
                f"{trial.label} needs {size(needs.total)} on each of its GPUs ({pieces}), but of "
                f"gpu.memory_gib={gpu.memory_gib:g} there are {size(gpu.usable_bytes)} for it; "
                f"{nearest_that_fits(trial.config, gpu)}"
            )


def nearest_that_fits(config: TrialConfig, gpu: GpuSettings) -> str:
    """What to write instead: the most rows at once, else activation checkpointing, else more sharing and workers."""
    for changes in _smaller(config):
        try:
            other = replace(config, trial=replace(config.trial, **changes))
        except ValueError:
            continue
        needs = gpu_memory(other).total
        if needs <= gpu.usable_bytes:
            said = " ".join(f"trial.{name}={str(value).lower()}" for name, value in changes.items())
            return f"write {said}, which needs {size(needs)}"
    return "no rows of a forward pass, ZeRO stage or number of workers make it fit: choose a smaller model.size"


def _smaller(config: TrialConfig) -> Iterator[dict[str, Any]]:
    """Changes of `trial.*` that need less memory, the least intrusive first."""
    trial = config.trial
    most = trial.micro_rows or trial.rows // trial.workers
    others = [workers for workers in range(trial.workers + 1, trial.rows + 1) if trial.rows % workers == 0]
    stages = sorted({trial.zero_stage, max(trial.zero_stage, 2), 3})
    for workers, stage, recompute in itertools.product((trial.workers, *others), stages, (False, True)):
        changed = {"activation_checkpointing": recompute, "zero_stage": stage, "workers": workers}
        changes = {name: value for name, value in changed.items() if value != getattr(trial, name)}
        # Computing layers once where the user wants them twice would only need more.
        if recompute or not trial.activation_checkpointing:
            yield from ({"micro_rows": rows, **changes} for rows in _divisors(trial.rows // workers, most))


def _divisors(number: int, most: int) -> Iterator[int]:
    return (one for one in range(min(number, most), 0, -1) if number % one == 0)
