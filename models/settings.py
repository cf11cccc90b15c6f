"""Which model a trial trains: the `model.*` settings."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Architecture, size and kernel of the model. All three are part of a trial's identity."""

    architecture: str = "mamba2"
    """Name of the recurrence; `models.registry.ARCHITECTURES` lists what there is."""
    size: str = "demo"
    """Name of a size preset of that architecture."""
    kernel: str = "auto"
    """`chunked` (matrix form), `fused` (GPU kernels of mamba-ssm and flash-linear-attention), `naive` (a loop over
    time, the meaning), or `auto`: `fused` where `trial.device` is `cuda`, else `chunked`."""

    def __post_init__(self) -> None:
        from models.registry import check_model_names

        check_model_names(self)
