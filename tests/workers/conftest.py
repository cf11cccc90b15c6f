"""A small real trial without Ray: demo model, shipped corpus, in-process bank, DeepSpeed at world size 1."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models.settings import ModelSettings
from workers.context import TrialContext, join_alone
from workers.settings import (
    BaseSettings,
    EvalSettings,
    InterventionSettings,
    OptimizerSettings,
    TrialConfig,
    TrialSettings,
)

TrialMaker = Callable[..., TrialConfig]
ContextMaker = Callable[..., TrialContext]


@pytest.fixture(scope="session", autouse=True)
def world_of_one() -> None:
    join_alone()


@pytest.fixture(scope="session")
def token_caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("token_cache")


@pytest.fixture
def small_trial() -> TrialMaker:
    def make(arm: str, *, steps: int = 4, rows: int = 6, **groups: dict[str, Any]) -> TrialConfig:
        trial = {"steps": steps, "rows": rows, "context": 32, "checkpoint_every": 2, **groups.get("trial", {})}
        evaluation: dict[str, Any] = {"length": 128, "windows": 2, "select_windows": 2, "apart_windows": 1, "chunk": 64}
        evaluation |= {"diagnostics": ()}
        return TrialConfig(
            arm=arm,
            model=ModelSettings(**groups.get("model", {})),
            base=BaseSettings(checkpoint="fresh"),
            intervention=InterventionSettings(**{"factor": 2, **groups.get("intervention", {})}),
            trial=TrialSettings(**trial),
            optimizer=OptimizerSettings(**{"peak_lr": 3e-3, **groups.get("optimizer", {})}),
            eval=EvalSettings(**{**evaluation, **groups.get("eval", {})}),
        )

    return make


@pytest.fixture
def make_context(tmp_path: Path, token_caches: Path) -> ContextMaker:
    def make(name: str = "trial", **changes: Any) -> TrialContext:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        return TrialContext(**{"folder": folder, "cache": token_caches, "identity": name, **changes})

    return make
