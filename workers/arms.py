"""The arms there are, by name. Adding one: a module `workers/interventions/<name>.py` and a line here."""

import difflib
from dataclasses import dataclass


@dataclass(frozen=True)
class Arm:
    """What the planner must know of an arm without importing torch."""

    name: str
    summary: str
    trains: bool = True
    """False: the untouched base is evaluated, no step is made."""
    uses_bank: bool = False
    """True: every step's final states go through the state bank."""
    settings: tuple[str, ...] = ()
    """Settings of its own: the value of a setting that a sweep varies is part of the name of the arms that use it."""


ARMS = {
    arm.name: arm
    for arm in (
        Arm("base", "the checkpoint as it is, evaluated only", trains=False),
        Arm("zero", "the same steps from zero state: the control"),
        Arm("random_noise", "initial state from N(0, sigma^2)", settings=("intervention.sigma",)),
        Arm(
            "state_passing",
            "initial state is another sequence's final state",
            uses_bank=True,
            settings=("intervention.reset_probability",),
        ),
    )
}


def check_arm(name: str) -> None:
    """Raise ValueError, naming the nearest arm, when `name` is none."""
    if name not in ARMS:
        nearest = difflib.get_close_matches(name, ARMS, n=1, cutoff=0)[0]
        raise ValueError(f"there is no arm {name!r}; did you mean {nearest!r}? Arms: {', '.join(ARMS)}")
