"""What every recurrent language model of this package offers: hidden vectors, logits, and a state that can be carried.

Shapes: B batch, T position, D model width, V vocabulary; parts of a state have the batch first, then the part's shape.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from models.architecture import RECURRENT, ModelDims

LayerState = dict[str, Tensor]
"""Part name -> tensor (B, *shape)."""
State = list[LayerState]
"""One LayerState per layer."""


@dataclass(frozen=True)
class PartSpec:
    """One named part of one layer's state."""

    shape: tuple[int, ...]
    """Shape of one sequence's part, without the batch."""
    dtype: torch.dtype
    head_axis: int | None
    """Axis of `shape` that counts heads; None if the part has no heads."""


class RecurrentLanguageModel(nn.Module, ABC):
    """A causal language model whose memory is an explicit state.

    A call returns the state after its last position. The state that a caller passes in is the state before position 0;
    None means the zero state. Cutting a sequence anywhere and carrying the state gives what one pass gives. The model
    never detaches a state: gradients flow through it until the caller detaches.

    Segments: `segment_ids` (B, T) integers mark packed documents. A position whose id differs from the one before
    starts a new segment: every part of the state is zero there. Segment 0 is the one that the carried state belongs to:
    a row whose first id is 0 continues it, any other first id starts from zero (the rule of mamba_ssm's `seq_idx`). A
    caller that cuts a packed row subtracts the last id of the piece before from the ids of the next piece. None means
    one segment, which continues the state.
    """

    dims: ModelDims
    recompute: bool = False
    """Whether the backward pass computes every layer again instead of keeping what it needs (activation
    checkpointing): the same numbers from less memory, for a second forward pass."""

    def __init__(self, dims: ModelDims) -> None:
        super().__init__()
        self.dims = dims
        self.vocab_size = dims.vocab_size

    @abstractmethod
    def forward(
        self, tokens_BT: Tensor, state: State | None = None, segment_ids: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Map int64 tokens (B, T), T >= 1, to hidden vectors (B, T, D) in the parameters' dtype, and the state."""

    @abstractmethod
    def head_weight(self) -> Tensor:
        """Return the output matrix (vocab_size, D), without the rows that only pad the vocabulary."""

    @abstractmethod
    def no_decay_parameters(self) -> set[str]:
        """Names (as in `named_parameters`) of the parameters that take no weight decay."""

    def fp32_parameters(self) -> set[str]:
        """Names (as in `named_parameters`) of the parameters that `in_precision` keeps at fp32 or better."""
        return {name for name, _ in self.named_parameters() if name.endswith(self.dims.FP32)}

    def in_precision(self, dtype: torch.dtype) -> Self:
        """Cast the parameters to `dtype`, but those of `fp32_parameters` no lower than fp32; return the model."""
        full, kept = torch.promote_types(dtype, torch.float32), self.fp32_parameters()
        for name, parameter in self.named_parameters():
            parameter.data = parameter.data.to(full if name in kept else dtype)
        return self

    def state_spec(self) -> list[dict[str, PartSpec]]:
        """Describe every part of every layer's state, in the dtypes that the model uses now."""
        dtype = self.head_weight().dtype
        full = torch.promote_types(dtype, torch.float32)
        return [
            {
                name: PartSpec(part.shape, full if name == RECURRENT else dtype, part.head_axis)
                for name, part in self.dims.layer_state(layer).items()
            }
            for layer in range(self.dims.n_layer)
        ]

    def head(self, hidden: Tensor) -> Tensor:
        """Map hidden vectors (..., D) to logits (..., vocab_size); padding rows never take probability."""
        return nn.functional.linear(hidden, self.head_weight())

    def zero_state(self, batch: int, device: torch.device | str | None = None) -> State:
        """Return the zero state of `batch` sequences, on the model's device by default."""
        where = next(self.parameters()).device if device is None else device
        return [
            {name: torch.zeros(batch, *part.shape, dtype=part.dtype, device=where) for name, part in layer.items()}
            for layer in self.state_spec()
        ]


def resets_from_segments(segment_ids_BT: Tensor) -> Tensor:
    """Return the bool mask (B, T) of positions before which the state is zeroed; see RecurrentLanguageModel."""
    first_B1 = segment_ids_BT[:, :1] != 0
    return torch.cat([first_B1, segment_ids_BT[:, 1:] != segment_ids_BT[:, :-1]], dim=1)


def run_layers(
    layers: Iterable[nn.Module],
    embedded_BTD: Tensor,
    state: State | None,
    segment_ids: Tensor | None,
    *,
    recompute: bool = False,
) -> tuple[Tensor, State]:
    """Run layers of (x, layer state, resets) -> (x, layer state), and return the residual stream and the final state.

    The residual stream is fp32 or better; `state` and `segment_ids` are those of RecurrentLanguageModel.forward. With
    `recompute` a layer keeps for the backward pass its input, its initial state and nothing else: states go in and come
    out as arguments and results of the recomputed call, so that gradients flow through them as they do without.
    """
    reset_BT = None if segment_ids is None else resets_from_segments(segment_ids)
    x_BTD = embedded_BTD.to(torch.promote_types(embedded_BTD.dtype, torch.float32))
    final: State = []
    for index, layer in enumerate(layers):
        run = _recomputed(layer) if recompute and torch.is_grad_enabled() else layer
        x_BTD, layer_final = run(x_BTD, None if state is None else state[index], reset_BT)
        final.append(layer_final)
    return x_BTD, final


def _recomputed(layer: nn.Module) -> Callable[..., tuple[Tensor, LayerState]]:
    """The layer, computed once more by the backward pass. No layer draws random numbers, so none are set back."""
    # ZeRO stage 3 takes weights apart after their use, so that what was kept has another shape than what is computed
    # again: the comparison of the two must be left out, and no result depends on it.
    return partial(checkpoint, layer, use_reentrant=False, preserve_rng_state=False, determinism_check="none")
