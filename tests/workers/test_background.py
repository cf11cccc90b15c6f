import threading
from typing import Any

import numpy as np
import pytest
import torch

from models.interface import State
from workers import background
from workers.background import BackgroundIntervention
from workers.interventions import Intervention

ROWS = np.arange(3)
OTHER_ROWS = np.arange(3, 6)


def state(value: float) -> State:
    return [{"recurrent": torch.full((3, 4), value)}]


class Recorder(Intervention):
    """Its initial state is the last value it has seen; every call is noted with its thread."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []
        self.threads: set[int] = set()
        self.seen = 0.0
        self.go_on = threading.Event()
        self.go_on.set()

    def initial_state(self, step: int, rows: np.ndarray) -> State | None:
        self._note("initial_state", step, rows)
        return state(self.seen)

    def observe(self, step: int, rows: np.ndarray, final_state: State) -> None:
        assert self.go_on.wait(20)
        self._note("observe", step, rows)
        self.seen = float(final_state[0]["recurrent"].max())

    def _note(self, what: str, *of: Any) -> None:
        self.calls.append((what, of[0], int(of[1][0])))
        self.threads.add(threading.get_ident())


def run(intervention: Recorder) -> list[float]:
    """Three steps of two micro-batches; each leaves the state 10 * step + first row."""
    loop, drawn = BackgroundIntervention(intervention), []
    coming = [(step, rows) for step in range(3) for rows in (ROWS, OTHER_ROWS)]
    for (step, rows), following in zip(coming, [*coming[1:], None], strict=True):
        initial = loop.initial_state(step, rows)
        assert initial is not None
        drawn.append(float(initial[0]["recurrent"][0, 0]))
        loop.observe(step, rows, state(10.0 * step + rows[0]), following)
    loop.settle()
    loop.close()
    return drawn


@pytest.mark.parametrize("limit", [background.AHEAD_LIMIT, 0])
def test_calls_and_states_are_those_of_a_loop_in_line(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "AHEAD_LIMIT", limit)
    intervention = Recorder()
    assert run(intervention) == [0.0, 0.0, 3.0, 10.0, 13.0, 20.0]
    calls = [(what, step, row) for step in range(3) for row in (0, 3) for what in ("initial_state", "observe")]
    assert intervention.calls == calls


def test_only_the_first_state_is_drawn_by_the_caller_while_states_are_small() -> None:
    intervention = Recorder()
    run(intervention)
    assert len(intervention.threads) == 2
    assert threading.get_ident() in intervention.threads


def test_observing_returns_at_once_and_settling_waits() -> None:
    intervention = Recorder()
    intervention.go_on.clear()
    loop = BackgroundIntervention(intervention)
    loop.observe(0, ROWS, state(5.0), None)
    assert not intervention.calls
    intervention.go_on.set()
    loop.settle()
    assert intervention.calls == [("observe", 0, 0)]
    loop.close()


def test_an_error_of_the_thread_is_raised_at_the_next_call_as_it_was() -> None:
    class Broken(Recorder):
        def observe(self, step: int, rows: np.ndarray, final_state: State) -> None:
            raise KeyError("lost")

    loop = BackgroundIntervention(Broken())
    loop.observe(0, ROWS, state(1.0), (1, ROWS))
    with pytest.raises(KeyError, match="lost"):
        loop.initial_state(1, ROWS)
    loop.close()


def test_a_state_drawn_for_other_rows_is_not_handed_out() -> None:
    intervention = Recorder()
    loop = BackgroundIntervention(intervention)
    loop.observe(0, ROWS, state(1.0), (1, ROWS))
    loop.initial_state(1, OTHER_ROWS)
    assert intervention.calls[-1] == ("initial_state", 1, 3)
    loop.close()
