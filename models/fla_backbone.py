"""What the models in flash-linear-attention's layout share: embedding, layers, final norm, head; norms and MLP.

Legend: B batch, T position, D model width, F MLP channel.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from models.architecture import ModelDims
from models.interface import RecurrentLanguageModel, State, run_layers
from models.norms import RMSNorm
from models.norms_fused import SWIGLUS

__all__ = ["FlaBackbone", "FlaLanguageModel", "GatedMLP", "LayerNorm", "RMSNorm"]


class LayerNorm(nn.LayerNorm):
    """Layer norm with weight and bias over the last axis; the result has the weight's dtype."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise in the dtype of x, fp32 or better."""
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps).to(self.weight.dtype)


class GatedMLP(nn.Module):
    """down(silu(gate x) * up x), without biases."""

    def __init__(self, width: int, inner: int, kernel: str) -> None:
        super().__init__()
        self.swiglu = SWIGLUS[kernel]
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        update_BTD: Tensor = self.down_proj(self.swiglu(self.gate_proj(x_BTD), self.up_proj(x_BTD)))
        return update_BTD


class FlaBackbone(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, dims: ModelDims, layers: Sequence[nn.Module], norm: nn.Module) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(dims.vocab_rows, dims.d_model)
        self.layers = nn.ModuleList(layers)
        self.norm = norm


class FlaLanguageModel(RecurrentLanguageModel):
    """A language model over any layers (x, layer state, resets) -> (x, layer state)."""

    def __init__(self, dims: ModelDims, layers: Sequence[nn.Module], norm: nn.Module) -> None:
        super().__init__(dims)
        self.model = FlaBackbone(dims, layers, norm)
        self.lm_head = nn.Linear(dims.d_model, dims.vocab_rows, bias=False)
        if dims.tied:
            self.lm_head.weight = self.model.embeddings.weight

    def forward(
        self, tokens_BT: Tensor, state: State | None = None, segment_ids: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See RecurrentLanguageModel.forward."""
        embedded_BTD = self.model.embeddings(tokens_BT)
        x_BTD, final = run_layers(self.model.layers, embedded_BTD, state, segment_ids, recompute=self.recompute)
        return self.model.norm(x_BTD), final

    def head_weight(self) -> Tensor:
        """See RecurrentLanguageModel.head_weight."""
        return self.lm_head.weight[: self.vocab_size]
