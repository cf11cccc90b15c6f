"""The layouts of RWKV-6 checkpoints: flash-linear-attention's, and that of RWKV/rwkv-6-world-*; imports no torch."""

from collections.abc import Collection, Mapping
from typing import Any

from models.fla_layout import FlaLayout
from models.rwkv6.dims import Rwkv6Dims
from models.rwkv6.world import Shape, from_world, is_world, shapes_there, to_world, world_config, world_dims


class Rwkv6Layout(FlaLayout):
    """See CheckpointLayout."""

    def file_shapes(self, dims: Rwkv6Dims, names: Collection[str]) -> dict[str, Shape]:
        """See CheckpointLayout."""
        if not is_world(names):
            return super().file_shapes(dims, names)
        tied = {} if not dims.tied or "head.weight" not in names else {dims.HEAD: (dims.vocab_rows, dims.d_model)}
        return {
            theirs: shape
            for name, ours in {**dims.tensor_shapes(), **tied}.items()
            for theirs, shape in shapes_there(name, ours)
        }

    def canonical(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """See CheckpointLayout."""
        return from_world(tensors) if is_world(tensors) else dict(tensors)

    def exported(self, tensors: Mapping[str, Any], layout: str) -> dict[str, Any]:
        """See CheckpointLayout; published are the World models."""
        if layout == "hf":
            return dict(tensors)
        return dict(pair for name, value in tensors.items() for pair in to_world(name, value))

    def exported_config(self, dims: Any, layout: str) -> dict[str, Any]:
        """See CheckpointLayout."""
        return super().exported_config(dims, layout) if layout == "hf" else world_config(dims)

    def dims_of(self, config: Mapping[str, Any], where: str) -> Any:
        """See CheckpointLayout."""
        official = "num_heads" not in config and "head_size" in config
        return world_dims(config, where) if official else super().dims_of(config, where)
