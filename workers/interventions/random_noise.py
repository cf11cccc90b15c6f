"""Random noise: h_{-1} ~ N(0, sigma^2), independent entries, one sigma for all layers (paper, section 4.2)."""

import numpy as np

from models.interface import State
from workers.interventions.contract import Intervention, InterventionContext
from workers.randomness import keyed_normals


class RandomNoise(Intervention):
    """sigma times standard normals keyed by (seed, step, row): every sigma scales the same normals."""

    def __init__(self, context: InterventionContext) -> None:
        self.context = context

    def initial_state(self, step: int, rows: np.ndarray) -> State | None:
        normals_BE = keyed_normals("noise", self.context.seed, step, rows, self.context.vector.elements)
        normals_BE.mul_(self.context.settings.sigma)
        return self.context.vector.unpack(normals_BE, self.context.device)

    def observe(self, step: int, rows: np.ndarray, final_state: State) -> None:
        """Final states have no say here."""


def build(context: InterventionContext) -> RandomNoise:
    """The intervention of the arm `random_noise`."""
    return RandomNoise(context)
