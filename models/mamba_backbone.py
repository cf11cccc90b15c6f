"""What both Mambas share: embedding, pre-norm residual blocks around a mixer, final norm and head.

Names and shapes of parameters are those of the published checkpoints. Legend: B batch, T position, D model width.
"""

import math
from collections.abc import Callable
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from models.architecture import ModelDims
from models.interface import LayerState, RecurrentLanguageModel, State, run_layers
from models.norms import RMSNorm

DT_FLOOR = 1e-4
"""Smallest initial step size, as published."""


class Mixer(Protocol):
    """What a block mixes positions with; a module."""

    def __call__(self, u_BTD: Tensor, state: LayerState | None, reset_BT: Tensor | None) -> tuple[Tensor, LayerState]:
        """Map normalised inputs (B, T, D) to the residual update (B, T, D) and the state after the last position."""
        ...

    def draw_initial_values(self, generator: torch.Generator) -> None:
        """Give every parameter its initial value."""
        ...


class MambaBlock(nn.Module):
    """Pre-norm residual block around a mixer; the residual stream is fp32 or better."""

    def __init__(self, dims: ModelDims, mixer: Mixer) -> None:
        super().__init__()
        self.norm = RMSNorm(dims.d_model, dims.norm_eps)
        self.mixer = mixer

    def forward(self, x_BTD: Tensor, state: LayerState | None, reset_BT: Tensor | None) -> tuple[Tensor, LayerState]:
        """Return the residual stream after this block, and the layer's final state."""
        update_BTD, final = self.mixer(self.norm(x_BTD), state, reset_BT)
        return x_BTD + update_BTD, final


class MambaBackbone(nn.Module):
    """Embedding, blocks and final norm."""

    def __init__(self, dims: ModelDims, make_mixer: Callable[[], Mixer]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(dims.vocab_rows, dims.d_model)
        self.layers = nn.ModuleList(MambaBlock(dims, make_mixer()) for _ in range(dims.n_layer))
        self.norm_f = RMSNorm(dims.d_model, dims.norm_eps)


class MambaLanguageModel(RecurrentLanguageModel):
    """A Mamba language model over any mixer; see RecurrentLanguageModel for states and segments."""

    def __init__(self, dims: ModelDims, seed: int, make_mixer: Callable[[], Mixer]) -> None:
        """Build the model with published initial values drawn from `seed` alone, on the CPU in fp32."""
        super().__init__(dims)
        self.backbone = MambaBackbone(dims, make_mixer)
        self.lm_head = nn.Linear(dims.d_model, dims.vocab_rows, bias=False)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            self.backbone.embedding.weight.normal_(std=0.02, generator=generator)
            for layer in self.backbone.layers:
                cast(Mixer, layer.mixer).draw_initial_values(generator)
            if dims.tied:
                self.lm_head.weight = self.backbone.embedding.weight
            else:
                draw_uniform(self.lm_head.weight, dims.d_model**-0.5, generator)

    def forward(
        self, tokens_BT: Tensor, state: State | None = None, segment_ids: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See RecurrentLanguageModel.forward."""
        embedded_BTD = self.backbone.embedding(tokens_BT)
        x_BTD, final = run_layers(self.backbone.layers, embedded_BTD, state, segment_ids, recompute=self.recompute)
        return self.backbone.norm_f(x_BTD), final

    def head_weight(self) -> Tensor:
        """See RecurrentLanguageModel.head_weight."""
        return self.lm_head.weight[: self.vocab_size]

    def no_decay_parameters(self) -> set[str]:
        """A_log, the bias of dt, D, every other bias and every norm weight."""
        return {name for name, parameter in self.named_parameters() if parameter.ndim == 1 or name.endswith("A_log")}


def draw_uniform(parameter: Tensor, bound: float, generator: torch.Generator) -> None:
    """Fill with numbers drawn uniformly from [-bound, bound]."""
    parameter.uniform_(-bound, bound, generator=generator)


def draw_dt_bias(bias: Tensor, dt_range: tuple[float, float], generator: torch.Generator) -> None:
    """Fill a bias so that softplus of it is drawn log-uniformly from `dt_range`, as published."""
    low, high = (math.log(value) for value in dt_range)
    dt = torch.empty_like(bias).uniform_(low, high, generator=generator).exp_().clamp_(min=DT_FLOOR)
    bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # the inverse of softplus
