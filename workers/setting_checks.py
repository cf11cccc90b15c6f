"""How a setting that makes no sense is refused: one sentence that names it, its value, and what to write."""

import difflib
import math
from collections.abc import Sequence


def require(holds: bool, key: str, value: object, expected: str) -> None:
    """Raise ValueError, saying what `key` is and what to write instead, unless the condition holds."""
    if not holds:
        raise ValueError(f"{key} is {value!r}; write {expected}")


def is_number(value: float) -> bool:
    """Whether it is a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)


def require_some_of(key: str, values: Sequence[str], known: Sequence[str]) -> None:
    """Raise ValueError, naming the nearest of `known`, unless all values are among them, each once."""
    for value in values:
        if value not in known:
            nearest = difflib.get_close_matches(value, known, n=1, cutoff=0)[0]
            raise ValueError(f"{key} names {value!r}; did you mean {nearest!r}? There are {', '.join(known)}")
    require(len(set(values)) == len(values), key, list(values), f"some of {', '.join(known)}, each once")
