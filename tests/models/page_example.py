"""The architecture that docs/adding_an_architecture.md adds, made from the page's own text."""

import re
import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import pytest

from models.registry import ARCHITECTURES

PAGE = Path(__file__).parents[2] / "docs" / "adding_an_architecture.md"
NAME, MODULE = "retention", "models.retention"


@lru_cache
def page_module() -> ModuleType:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    module = ModuleType(MODULE)
    # Dataclasses look their module up while they are made.
    sys.modules[MODULE] = module
    exec(compile(code, str(PAGE), "exec"), module.__dict__)
    return module


def add_page_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what the page says, for one test."""
    monkeypatch.setitem(sys.modules, MODULE, page_module())
    monkeypatch.setitem(ARCHITECTURES, NAME, MODULE)
