"""Values of settings by the type that each setting has: read from `--set`, or checked where a file gives them."""

import types
import typing
from typing import Any

_WORDS = {int: "a whole number", float: "a number", str: "text in quotes"}
_WORDS_OF_MANY = {int: "whole numbers", float: "numbers", str: "texts in quotes"}


def read_value(key: str, hint: Any, text: str) -> Any:
    """The value of type `hint` that `text` stands for. Raises ValueError."""
    if isinstance(hint, types.GenericAlias):
        item = typing.get_args(hint)[0]
        inside = text[1:-1] if "," in text and (text[0], text[-1]) in (("[", "]"), ("(", ")")) else text
        return tuple(_read_scalar(key, item, part.strip()) for part in inside.split(",") if part.strip())
    return _read_scalar(key, hint, text)


def _read_scalar(key: str, kind: type[Any], text: str) -> Any:
    if kind is str:
        return text
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{key} is {text!r}; write {_WORDS[kind]}, for example --set {key}=1") from None


def checked_value(key: str, hint: Any, value: Any) -> Any:
    """`value` as the type `hint`: a whole number stands for a number, a list for a tuple. Raises ValueError.

    1 and 1.0 must not be two trials, and 24.0 rows would only fail once the trial runs.
    """
    if isinstance(hint, types.GenericAlias):
        item = typing.get_args(hint)[0]
        if not isinstance(value, tuple | list) or not all(_is_a(item, one) for one in value):
            raise ValueError(f"{key} is {value!r}; write a tuple of {_WORDS_OF_MANY[item]}")
        return tuple(item(one) for one in value)
    if not _is_a(hint, value):
        raise ValueError(f"{key} is {value!r}; write {_WORDS[hint]}")
    return hint(value)


def _is_a(kind: type[Any], value: Any) -> bool:
    accepted = (int, float) if kind is float else kind
    return isinstance(value, accepted) and not isinstance(value, bool)
