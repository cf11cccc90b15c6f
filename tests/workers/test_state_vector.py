import numpy as np
import pytest
import torch

from models.registry import build_model
from models.settings import ModelSettings
from workers.state_vector import StateVector

MODEL = build_model(ModelSettings(), 256, seed=0)


def test_unpack_inverts_pack() -> None:
    vector = StateVector(MODEL.state_spec(), ["recurrent", "conv"])
    _, state = MODEL(torch.randint(256, (3, 20)))
    again = vector.unpack(vector.pack(state), MODEL.zero_state(3))
    for layer, other in zip(state, again, strict=True):
        assert all(torch.equal(layer[part], other[part]) for part in layer)


def test_untouched_parts_stay_as_they_were() -> None:
    vector = StateVector(MODEL.state_spec(), ["recurrent"])
    state = vector.unpack(np.ones((2, vector.elements), np.float32), MODEL.zero_state(2))
    assert all((layer["recurrent"] == 1).all() and (layer["conv"] == 0).all() for layer in state)


def test_groups_are_the_heads_of_each_layer() -> None:
    vector = StateVector(MODEL.state_spec(), ["recurrent"])
    groups = vector.groups()
    assert len(groups) == 2 * 16 and groups[0] == ("0.recurrent.0", 0, 16 * 64) and groups[-1][2] == vector.elements
    _, state = MODEL(torch.randint(256, (1, 20)))
    name, start, stop = groups[17]
    assert name == "1.recurrent.1"
    assert torch.equal(torch.from_numpy(vector.pack(state)[0, start:stop]), state[1]["recurrent"][0, 1].flatten())


def test_a_part_that_no_layer_has_is_refused() -> None:
    with pytest.raises(ValueError, match="none of the parts"):
        StateVector(MODEL.state_spec(), ["cache"])
