"""The interventions, one file each, found by the arm's name."""

import importlib

from workers.arms import ARMS
from workers.interventions.contract import Intervention, InterventionContext


def build_intervention(arm: str, context: InterventionContext) -> Intervention:
    """The intervention of an arm that trains."""
    if not ARMS[arm].trains:
        raise ValueError(f"the arm {arm!r} does not train, so it has no intervention")
    module = importlib.import_module(f"workers.interventions.{arm}")
    intervention: Intervention = module.build(context)
    return intervention


__all__ = ["Intervention", "InterventionContext", "build_intervention"]
