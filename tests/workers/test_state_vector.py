import pytest
import torch

from models.registry import build_model
from models.settings import ModelSettings
from workers.state_vector import StateVector

MODEL = build_model(ModelSettings(), 256, seed=0)


def test_unpack_inverts_pack() -> None:
    vector = StateVector(MODEL.state_spec(), ["recurrent", "conv"])
    _, state = MODEL(torch.randint(256, (3, 20)))
    again = vector.unpack(vector.pack(state))
    for layer, other in zip(state, again, strict=True):
        assert all(torch.equal(layer[part], other[part]) for part in layer)


def test_untouched_parts_stay_as_they_were() -> None:
    vector = StateVector(MODEL.state_spec(), ["recurrent"])
    state = vector.unpack(torch.ones(2, vector.elements))
    assert all((layer["recurrent"] == 1).all() and (layer["conv"] == 0).all() for layer in state)


def test_groups_are_the_heads_of_each_layer() -> None:
    vector = StateVector(MODEL.state_spec(), ["recurrent"])
    groups = vector.groups()
    assert len(groups) == 2 * 16 and groups[0] == ("0.recurrent.0", 0, 16 * 64) and groups[-1][2] == vector.elements
    _, state = MODEL(torch.randint(256, (1, 20)))
    name, start, stop = groups[17]
    assert name == "1.recurrent.1"
    assert torch.equal(vector.pack(state)[0, start:stop], state[1]["recurrent"][0, 1].flatten())


def test_packing_into_a_buffer_gives_the_same_vectors() -> None:
    vector = StateVector(MODEL.state_spec())
    _, state = MODEL(torch.randint(256, (2, 20)))
    buffer = torch.full((2, vector.elements), torch.nan)
    assert vector.pack(state, buffer) is buffer and torch.equal(buffer, vector.pack(state))


def test_ranges_of_a_scope_cover_the_vector_without_a_gap() -> None:
    vector = StateVector(MODEL.state_spec())
    for scope, number in (("head", 2 * 17), ("layer", 2), ("all", 1)):
        ranges = vector.ranges(scope)
        assert len(ranges) == number
        assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
        assert ranges[-1][1] == vector.elements


def test_a_part_that_no_layer_has_is_refused() -> None:
    with pytest.raises(ValueError, match="none of the parts"):
        StateVector(MODEL.state_spec(), ["cache"])
