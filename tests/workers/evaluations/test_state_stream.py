from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.registry import ARCHITECTURES
from tests.workers.evaluations.byte_models import byte_model, report_windows
from workers.evaluations.state_stream import nearby, passes, positions_of_interest, stream_states

CPU = torch.device("cpu")


def test_positions_are_powers_of_two_and_what_lies_halfway() -> None:
    assert positions_of_interest(256, 64).tolist() == [16, 24, 32, 48, 64, 96, 128, 192, 256]
    assert positions_of_interest(100, 30).tolist() == [16, 24, 30, 32, 48, 50, 64, 96, 100]
    assert positions_of_interest(10, 64).tolist() == [5, 10]
    assert positions_of_interest(1, 1).tolist() == [1]
    assert len(positions_of_interest(16384, 64)) == 21


@given(st.integers(1, 2**20), st.integers(1, 2**20))
def test_positions_increase_and_hold_the_training_length_and_the_last(length: int, train_length: int) -> None:
    positions = positions_of_interest(length, train_length)
    assert (np.diff(positions) > 0).all() and positions[-1] == length and positions[0] >= 1
    assert (train_length in positions) == (train_length <= length)


@given(st.integers(1, 2**40))
def test_what_is_near_lies_above_half(position: int) -> None:
    around = nearby(np.array([position]))[0]
    assert around[0] == position and len(around) == 8
    assert (2 * around > position).all() and (around <= position).all()
    assert position < 16 or len(set(around.tolist())) == 8


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("chunk", [7, 512])
def test_streamed_states_are_those_of_one_pass(architecture: str, chunk: int, token_caches: Path) -> None:
    model = byte_model(architecture, torch.float32)
    windows = report_windows(token_caches, 128, 2)
    positions = np.array([1, 5, 24, 25, 64, 100])
    for position, state in stream_states(model, windows, positions, chunk, CPU):
        tokens = torch.from_numpy(np.stack([window.tokens(0, position) for window in windows]))
        with torch.no_grad():
            _, right = model(tokens)
        for found_layer, right_layer in zip(state, right, strict=True):
            for part, value in right_layer.items():
                scale = float(value.abs().max())
                torch.testing.assert_close(found_layer[part], value, rtol=0, atol=1e-5 * scale)


def test_as_many_windows_go_together_as_with_the_curves(token_caches: Path) -> None:
    windows = report_windows(token_caches, 128, 5)
    assert [len(some) for some in passes(windows, 4096)] == [2, 2, 1]
    assert [len(some) for some in passes(windows, 100_000)] == [1] * 5
