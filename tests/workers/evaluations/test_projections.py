import math

import numpy as np
import pytest
import torch

from models.architecture import RECURRENT
from models.interface import RecurrentLanguageModel, State
from models.registry import ARCHITECTURES
from tests.workers.evaluations.byte_models import byte_model
from workers.evaluations import projections
from workers.evaluations.projections import DIRECTIONS, Projections

CPU = torch.device("cpu")


def random_state(model: RecurrentLanguageModel, rows: int, seed: int = 0) -> State:
    generator = torch.Generator().manual_seed(seed)
    return [
        {name: torch.randn(part.shape, generator=generator) for name, part in layer.items()}
        for layer in model.zero_state(rows)
    ]


def unit_states(model: RecurrentLanguageModel, layer: int) -> State:
    """As many states as a layer has recurrent entries, each with one entry that is 1."""
    shape = model.state_spec()[layer][RECURRENT].shape
    state = model.zero_state(math.prod(shape))
    state[layer][RECURRENT] = torch.eye(math.prod(shape)).reshape(-1, *shape)
    return state


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_layer_is_seen_along_unit_directions(architecture: str) -> None:
    model = byte_model(architecture, torch.float32)
    project = Projections(model, CPU)
    assert project.layers == tuple(range(model.dims.n_layer))
    for layer in project.layers:
        matrix_ELD = project(unit_states(model, layer))
        assert matrix_ELD.shape[1:] == (len(project.layers), DIRECTIONS)
        np.testing.assert_allclose((matrix_ELD[:, layer] ** 2).sum(axis=0), 1.0, rtol=1e-5)
        assert (np.delete(matrix_ELD, layer, axis=1) == 0).all()


def test_directions_are_those_of_the_shape_and_differ_between_layers() -> None:
    one, other = byte_model("mamba2", torch.float32), byte_model("mamba2", torch.float32)
    state = random_state(one, 3)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    seen = Projections(one, CPU)(state)
    assert np.array_equal(seen, Projections(other, CPU)(state))
    same_in_all_layers = [state[0] for _ in state]
    seen = Projections(one, CPU)(same_in_all_layers)
    assert not np.isclose(seen[:, 0], seen[:, 1]).any()


def test_no_direction_is_preferred() -> None:
    model = byte_model("mamba2", torch.float32)
    state = random_state(model, 40)
    seen = Projections(model, CPU)(state)
    size_B = state[0][RECURRENT].flatten(1).square().sum(1).numpy()
    entries = state[0][RECURRENT][0].numel()
    # The mean square of a random unit direction's product with h is |h|^2 / E; over 40 states it is near 1.
    assert np.mean((seen[:, 0] ** 2).mean(axis=1) * entries / size_B) == pytest.approx(1.0, abs=0.1)


def test_of_a_large_layer_some_entries_are_seen_in_all_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projections, "MOST_ENTRIES", 20)
    model = byte_model("gla", torch.float32)
    matrix_ED = Projections(model, CPU)(unit_states(model, 1))[:, 1]
    seen = (matrix_ED != 0).any(axis=1)
    assert seen.sum() == 20 < len(seen)
    np.testing.assert_allclose((matrix_ED**2).sum(axis=0), 1.0, rtol=1e-5)
