"""Signals during a write to the tracking store interrupt after it, and only once."""

import os
import signal
from collections.abc import Iterator

import pytest

from sweeps import interrupts


@pytest.fixture(autouse=True)
def caught(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(interrupts, "_last_signal", -1e9)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    interrupts.catch_signals()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_interrupts_at_once_outside_of_writes() -> None:
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)
    assert interrupts.exit_code() == 143


def test_a_signal_waits_for_the_outermost_write() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts.held_back():
        with interrupts.held_back():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]
    assert interrupts.exit_code() == 130
    with interrupts.held_back():
        done.append("later writes are not interrupted again")


def test_a_second_signal_soon_after_is_ignored() -> None:
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)
