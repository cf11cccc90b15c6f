"""Random noise: h_{-1} ~ N(0, sigma^2), independent entries, one sigma for all layers (paper, section 4.2)."""

import numpy as np

from models.interface import State
from workers.interventions.contract import Intervention, InterventionContext
from workers.noise_ahead import NoiseAhead


class RandomNoise(Intervention):
    """sigma times standard normals keyed by (seed, step, row): every sigma scales the same normals."""

    def __init__(self, context: InterventionContext) -> None:
        self.context = context
        self.noise = NoiseAhead(context.seed, context.vector.elements)

    def initial_state(self, step: int, rows: np.ndarray) -> State | None:
        normals_BE = self.noise.normals(step, rows)
        normals_BE.mul_(self.context.settings.sigma)
        return self.context.vector.unpack(normals_BE, self.context.device)

    def observe(self, step: int, rows: np.ndarray, final_state: State) -> None:
        self.noise.draw_ahead(step + 1, rows)


def build(context: InterventionContext) -> RandomNoise:
    """The intervention of the arm `random_noise`."""
    return RandomNoise(context)
