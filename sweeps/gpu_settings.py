"""The settings `gpu.*`: what plans assume of a GPU. They change no trial and are in no identity."""

from dataclasses import dataclass

from workers.setting_checks import is_number, require

KEPT_FREE = 0.1
"""Share of a GPU's memory that plans leave to CUDA, the kernels' workspaces and gaps between tensors."""


@dataclass(frozen=True, kw_only=True)
class GpuSettings:
    """A GPU as plans see it. The defaults are ours: an A100 with 80 GiB, of whose peak speed 30 % come through."""

    name: str = "A100"
    """What it is called in plans."""
    memory_gib: float = 80.0
    """Its memory; a trial that needs more than nine tenths of it is refused."""
    tflops: float = 312.0
    """Its peak in 1e12 floating-point operations a second, in bf16."""
    utilization: float = 0.3
    """Share of the peak that training reaches; a measured one should replace it."""
    usd_per_hour: float = 2.0
    """What an hour of it costs, in US dollars."""

    def __post_init__(self) -> None:
        for name in ("memory_gib", "tflops", "utilization"):
            value = getattr(self, name)
            require(is_number(value) and value > 0, f"gpu.{name}", value, "a number above 0")
        require(self.utilization <= 1, "gpu.utilization", self.utilization, "a share of at most 1")
        value = self.usd_per_hour
        require(is_number(value) and value >= 0, "gpu.usd_per_hour", value, "a number of at least 0")

    @property
    def usable_bytes(self) -> int:
        """Bytes of its memory that a trial may need."""
        return int((1 - KEPT_FREE) * self.memory_gib * 2**30)

    @property
    def flops_per_second(self) -> float:
        """Floating-point operations a second that training makes."""
        return self.utilization * self.tflops * 1e12
