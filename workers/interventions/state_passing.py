"""State passing: h_{-1} is the detached final state of another sequence one step ago (paper, section 4.4).

The windows are shuffled, so the state comes from an unrelated text.
"""

from workers.interventions.contract import InterventionContext
from workers.interventions.passing import ShuffledPassing


def build(context: InterventionContext) -> ShuffledPassing:
    """The intervention of the arm `state_passing`."""
    return ShuffledPassing(context)
