"""Which model a trial trains: the `model.*` settings."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Architecture, size and scan of the model. All three are part of a trial's identity."""

    architecture: str = "mamba2"
    """Name of the recurrence; `models.registry.ARCHITECTURES` lists what there is."""
    size: str = "demo"
    """Name of a size preset of that architecture."""
    scan: str = "chunked"
    """`chunked` (matrix form, the default) or `naive` (a loop over time, the meaning)."""

    def __post_init__(self) -> None:
        from models.registry import check_model_names

        check_model_names(self)
