"""How this process's C library treats freed memory."""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3), from glibc's malloc.h: M_TRIM_THRESHOLD and M_MMAP_THRESHOLD."""
_LARGEST_KEPT = 2**30
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let this process keep memory that torch frees, up to 1 GiB apiece, for the next step; the kernel gets none back.

    glibc otherwise returns the larger tensors of every step to the kernel, which clears new pages for the next one:
    thousands of page faults a step of the demo (benchmarks/state_passing_step.md). The process keeps its peak.
    Returns whether the C library does so; one that is not glibc is left as it is, and only speed differs.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT) == 1 and mallopt(_TRIM_THRESHOLD, _NEVER) == 1
