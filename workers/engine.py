"""The DeepSpeed engine of one trial: AdamW groups, ZeRO stage, precision, clipping, activation checkpointing.

The optimiser is torch's own AdamW, so that nothing is compiled on a laptop. In bf16 the gradients of micro-batches are
added up in fp32, and the parameters that decays are made of stay in fp32 (`RecurrentLanguageModel.fp32_parameters`):
DeepSpeed casts the whole module to bf16 before it asks for the optimiser, and from then on handles each group of
parameters in the dtype that it finds; stage 3 with some help (`workers.zero_stage_3`).
"""

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from models.interface import RecurrentLanguageModel, State
from models.loss import cross_entropy_sum
from workers.settings import OptimizerSettings, TrialConfig

# DeepSpeed looks for its accelerator at import; on a machine without CUDA it would otherwise try to build one.
if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed  # noqa: E402
import deepspeed.runtime.bf16_optimizer  # noqa: E402
from deepspeed.runtime.engine import DeepSpeedEngine  # noqa: E402

from workers.zero_stage_3 import buffer_for_each_dtype  # noqa: E402

# The shared-memory collective is a C++ build of a minute; gloo does the same job.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def _say_nothing(*_: Any, **__: Any) -> None:
    """In place of reports of memory in use."""


# The optimiser of bf16 at stage 1 reports, asked or not, eight times while it is built, each after a full collection.
deepspeed.runtime.bf16_optimizer.see_memory_usage = _say_nothing


class LossModule(nn.Module):
    """The model with its loss, as one module, so that ZeRO sees every use of every parameter."""

    def __init__(self, model: RecurrentLanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor, state: State | None) -> tuple[Tensor, State]:
        """(summed NLL in nats, final state)."""
        hidden_BTD, final_state = self.model(tokens_BT, state)
        nll_sum, _ = cross_entropy_sum(hidden_BTD, targets_BT, self.model)
        return nll_sum, final_state


def parameter_groups(model: RecurrentLanguageModel, weight_decay: float) -> list[dict[str, Any]]:
    """AdamW groups: matrices with decay; A_log, dt_bias, D, norms and biases without, those in fp32 in a third group.

    There is no third group where all parameters have one dtype: in fp32.
    """
    no_decay = model.no_decay_parameters()
    groups: dict[tuple[bool, torch.dtype], list[nn.Parameter]] = {}
    for name, parameter in sorted(model.named_parameters(), key=lambda named: named[0] in no_decay):
        groups.setdefault((name in no_decay, parameter.dtype), []).append(parameter)
    # DeepSpeed takes the first group for that of the training dtype: the matrices come first.
    return [{"params": members, "weight_decay": 0.0 if free else weight_decay} for (free, _), members in groups.items()]


class FiniteAdamW(torch.optim.AdamW):
    """AdamW that leaves weights and moments alone when a gradient is not finite, as ZeRO's own optimisers do.

    For ZeRO stage 0, where every worker holds the same, whole gradients and so comes to the same decision.
    """

    overflow = False
    """Whether the last step was left out; DeepSpeed looks for this name."""

    def step(self, closure: Any = None) -> Any:
        """One step, or none."""
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        self.overflow = not all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
        return None if self.overflow else super().step(closure)


def _engine_config(config: TrialConfig, world: int) -> dict[str, Any]:
    trial = config.trial
    # DeepSpeed's stage 0 cannot; TrialConfig lets it have one micro-batch only.
    adds_up_in_fp32 = trial.precision == "bf16" and trial.zero_stage > 0
    return {
        "train_batch_size": config.batch_rows,
        "train_micro_batch_size_per_gpu": config.micro_rows,
        "gradient_accumulation_steps": config.batch_rows // (world * config.micro_rows),
        "gradient_clipping": config.optimizer.clip,
        "zero_optimization": {"stage": trial.zero_stage},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": trial.precision == "bf16", "check_grad_overflow": True},
        "data_types": {"grad_accum_dtype": "fp32" if adds_up_in_fp32 else None},
        "steps_per_print": 10**9,
        "wall_clock_breakdown": False,
    }


def build_engine(model: RecurrentLanguageModel, config: TrialConfig, world: int) -> DeepSpeedEngine:
    """DeepSpeed engine around `LossModule(model)`, a model in fp32; the process group exists already."""
    model.recompute = config.trial.activation_checkpointing
    with buffer_for_each_dtype():
        engine, *_ = deepspeed.initialize(
            model=LossModule(model),
            optimizer=_optimizer_maker(model, config),
            config=_engine_config(config, world),
            dist_init_required=False,
        )
    return engine


def _optimizer_maker(model: RecurrentLanguageModel, config: TrialConfig) -> Callable[[Any], torch.optim.Optimizer]:
    """What DeepSpeed calls for the optimiser, after it has cast the model: gives back what the cast has rounded."""
    settings: OptimizerSettings = config.optimizer
    kind = FiniteAdamW if config.trial.zero_stage == 0 else torch.optim.AdamW
    exact = {name: p.detach().clone() for name, p in model.named_parameters() if name in model.fp32_parameters()}

    def make(_: Any) -> torch.optim.Optimizer:
        for name, value in exact.items():
            parameter = model.get_parameter(name)
            parameter.data = value.to(parameter.device)
        groups = parameter_groups(model, settings.weight_decay)
        return kind(groups, lr=settings.peak_lr, betas=(settings.beta1, settings.beta2))

    return make


def set_learning_rate(engine: DeepSpeedEngine, rate: float) -> None:
    """Set the rate of the coming step in every parameter group."""
    for group in engine.optimizer.param_groups:
        group["lr"] = rate


def plain_weights(engine: DeepSpeedEngine) -> dict[str, Tensor]:
    """The model's weights as plain tensors, whole on every worker, whatever the ZeRO stage."""
    model = engine.module.model
    if engine.zero_optimization_stage() < 3:
        return {name: value.detach() for name, value in model.state_dict().items()}
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        return {name: value.detach().clone() for name, value in model.state_dict().items()}
