"""The arms there are, by name. Adding one: a module `workers/interventions/<name>.py` and an entry here.

Imports no torch: the planner asks too.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Arm:
    """What the planner must know of an arm."""

    name: str
    summary: str
    settings: tuple[str, ...] = ()
    """The `intervention.*` settings that it uses; the others cannot change its numbers."""
    variant: tuple[str, ...] = ()
    """Those of its settings whose values always belong to its name."""
    bank: tuple[str, ...] = ()
    """What goes through the state bank: `states` of every row, `moments` of them, or a `reservoir` of some."""
    trains: bool = True
    """False: the untouched base is evaluated, no step is made."""
    reads_on: bool = False
    """True: a row's windows follow one another in its text, instead of being shuffled."""
    mixes: bool = True
    """Whether it can be part of a `mixture`: it draws initial states and leaves the windows as they are."""


_PASSING = ("reset_probability", "reset_by", "passing", "parts")

ARMS = {
    arm.name: arm
    for arm in (
        Arm("base", "the checkpoint as it is, evaluated only", trains=False, mixes=False),
        Arm("zero", "the same steps from zero state: the control"),
        Arm(
            "random_noise",
            "initial state from N(0, sigma^2)",
            settings=("sigma", "parts"),
            variant=("sigma",),
        ),
        Arm(
            "fitted_noise",
            "initial state from a normal fitted to the final states of each layer and head",
            settings=("beta", "parts"),
            bank=("moments",),
        ),
        Arm(
            "state_passing",
            "initial state is another sequence's final state",
            settings=_PASSING,
            bank=("states",),
        ),
        Arm(
            "tbtt",
            "initial state is the final state of the text just before, every part of it",
            settings=("reset_probability", "reset_by", "document_end"),
            bank=("states",),
            reads_on=True,
            mixes=False,
        ),
        Arm(
            "longer_context",
            "zero state and longer windows, equal tokens per step",
            settings=("factor",),
            variant=("factor",),
            mixes=False,
        ),
        Arm(
            "reservoir",
            "initial state is drawn from a uniform sample of all final states so far",
            settings=("capacity", "reset_probability", "reset_by", "parts"),
            bank=("reservoir",),
        ),
        Arm(
            "correlated_noise",
            "Gaussian noise with the covariance of final states, within a head, a layer or all",
            settings=("scope", "capacity", "parts"),
            variant=("scope",),
            bank=("reservoir",),
        ),
        Arm(
            "shuffled_entries",
            "a passed state whose entries are permuted within each head",
            settings=_PASSING,
            bank=("states",),
        ),
        Arm(
            "mixture",
            "one of two arms, drawn for each row and step",
            settings=("mixture", "mixture_probability"),
            variant=("mixture",),
            mixes=False,
        ),
    )
}


def check_arm(name: str, known: Iterable[str] = ARMS) -> None:
    """Raise ValueError, naming the nearest of `known`, when `name` is none of them."""
    names = list(known)
    if name not in names:
        nearest = difflib.get_close_matches(name, names, n=1, cutoff=0)[0]
        raise ValueError(f"there is no arm {name!r}; did you mean {nearest!r}? Arms: {', '.join(names)}")


def parts_of(arm: str, mixture: tuple[str, ...]) -> tuple[Arm, ...]:
    """The arms that draw the initial states: those that a mixture mixes, else the arm itself."""
    return tuple(ARMS[name] for name in mixture) if arm == "mixture" else (ARMS[arm],)
