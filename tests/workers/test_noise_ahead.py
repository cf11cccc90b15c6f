import numpy as np
import pytest
import torch

from workers import noise_ahead
from workers.noise_ahead import NoiseAhead
from workers.randomness import keyed_normals


@pytest.mark.parametrize("limit", [noise_ahead.AHEAD_LIMIT, 0])
def test_noise_drawn_ahead_is_the_noise_that_would_have_been_drawn(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_ahead, "AHEAD_LIMIT", limit)
    noise = NoiseAhead(seed=3, elements=1000)
    for step in range(4):
        for rows in (np.arange(3), np.arange(3, 5)):
            expected = keyed_normals("noise", 3, step, rows, 1000)
            drawn = noise.normals(step, rows)
            assert torch.equal(drawn, expected)
            drawn.zero_()  # it is the caller's own
            noise.draw_ahead(step + 1, rows)


def test_what_was_drawn_ahead_and_never_asked_for_is_dropped() -> None:
    noise = NoiseAhead(seed=0, elements=10)
    for step in range(50):
        noise.draw_ahead(step, np.arange(2))
    assert len(noise._ahead) <= 2
