"""How a setting that makes no sense is refused: one sentence that names it, its value, and what to write."""

import math


def require(holds: bool, key: str, value: object, expected: str) -> None:
    """Raise ValueError, saying what `key` is and what to write instead, unless the condition holds."""
    if not holds:
        raise ValueError(f"{key} is {value!r}; write {expected}")


def is_number(value: float) -> bool:
    """Whether it is a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)
