"""The layout of GLA checkpoints, today's and that of before February 2025; imports no torch.

Files of flash-linear-attention from before it had `mlp.up_proj` hold both matrices in `mlp.gate_proj` (2 F, D), the
gate's rows first, as its GLAMLP of that time cut them (`gate, y = gate_proj(x).chunk(2, -1)`).
"""

from collections.abc import Collection, Mapping
from typing import Any

from models.fla_layout import FlaLayout
from models.gla.dims import GlaDims

_GATE, _UP = ".mlp.gate_proj.weight", ".mlp.up_proj.weight"


class GlaLayout(FlaLayout):
    """See CheckpointLayout."""

    def file_shapes(self, dims: GlaDims, names: Collection[str]) -> dict[str, tuple[int, ...]]:
        """See CheckpointLayout."""
        shapes = super().file_shapes(dims, names)
        if not _is_fused(names):
            return shapes
        fused = (2 * dims.mlp, dims.d_model)
        return {
            name: fused if name.endswith(_GATE) else shape for name, shape in shapes.items() if not name.endswith(_UP)
        }

    def canonical(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """See CheckpointLayout."""
        if not _is_fused(tensors):
            return dict(tensors)
        read: dict[str, Any] = {}
        for name, value in tensors.items():
            if name.endswith(_GATE):
                read[name], read[name.replace(_GATE, _UP)] = value.chunk(2)
            else:
                read[name] = value
        return read


def _is_fused(names: Collection[str]) -> bool:
    return any(name.endswith(_GATE) for name in names) and not any(name.endswith(_UP) for name in names)
