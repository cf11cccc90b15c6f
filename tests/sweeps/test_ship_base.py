from typing import Any

import pytest

from sweeps.demo_base import SWEEP
from sweeps.ship_base import chosen

PRESET = SWEEP.presets["demo"]["trial.steps"]


@pytest.mark.parametrize(
    ("architecture", "steps", "said"),
    [
        ("mamba2", PRESET, ""),
        ("mamba2", 7, " --set trial.steps=7"),
        ("gla", PRESET, " --set model.architecture=gla"),
        ("rwkv6", 600, " --set model.architecture=rwkv6 --set trial.steps=600"),
    ],
)
def test_the_record_of_a_base_names_what_was_set_beside_the_preset(architecture: str, steps: int, said: str) -> None:
    result: dict[str, Any] = {"config": {"model": {"architecture": architecture}, "trial": {"steps": steps}}}
    assert chosen(result) == said
