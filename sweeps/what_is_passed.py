"""what_is_passed: the choices within state passing that the paper leaves open."""

from typing import Any

from sweeps.demo_preset import DEMO
from sweeps.paper_preset import PAPER
from sweeps.registry import NamedSweep
from sweeps.settings import Settings
from sweeps.trials import Trial, beside_base

PARTS, RESETS, PASSING = "intervention.parts", "intervention.reset_by", "intervention.passing"
CHOICES: tuple[dict[str, Any], ...] = (
    {PARTS: ("recurrent",), RESETS: "row", PASSING: "in_place"},
    {PARTS: ("recurrent", "conv"), RESETS: "row", PASSING: "in_place"},
    {PARTS: ("recurrent",), RESETS: "batch", PASSING: "in_place"},
    {PARTS: ("recurrent",), RESETS: "row", PASSING: "permuted"},
    {PARTS: ("recurrent", "conv"), RESETS: "batch", PASSING: "permuted"},
)
"""The default, each choice turned by itself, and all of them turned."""


def trials(settings: Settings, seeds: list[int]) -> list[Trial]:
    """base once, then zero and every choice for each seed."""
    return beside_base(settings, seeds, [("zero", {}), *(("state_passing", choice) for choice in CHOICES)])


SWEEP = NamedSweep(
    name="what_is_passed",
    question="Does it matter which parts of the state are passed, how resets are drawn, and to which row a state goes?",
    why="The paper passes the recurrent state alone as far as one can tell, and does not say whether a reset takes "
    "a row or the whole batch.",
    paper_found="Nothing; these are choices that its text leaves open.",
    contradicts="A choice that changes the result: then results of the paper cannot be repeated without knowing it.",
    varies="",
    fixed=(PARTS, RESETS, PASSING),
    named=(PARTS, RESETS, PASSING),
    presets={"demo": DEMO, "paper": PAPER},
    trials=trials,
)
