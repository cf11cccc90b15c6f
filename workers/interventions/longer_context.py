"""Longer context: zero state, and windows `factor` times as long in `factor` times fewer rows.

The natural rival of all the others: it spends the same tokens on showing the model the states further on. The length
is a matter of the trial's windows (`TrialConfig.window`); the initial state is that of the control.
"""

from workers.interventions.contract import InterventionContext
from workers.interventions.zero import ZeroState


def build(context: InterventionContext) -> ZeroState:
    """The intervention of the arm `longer_context`."""
    return ZeroState()
