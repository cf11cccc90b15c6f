"""Ctrl-C, SIGTERM and a closed terminal as one orderly KeyboardInterrupt, never in the middle of a write to the store.

An exception between the statements of a database transaction can leave the connection, and with it the store's write
lock, behind in this very process; the runs could then not be ended.
"""

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

PATIENCE_SECONDS = 15.0
"""A second signal within so many seconds is ignored."""

_last_signal, _last_number = -math.inf, signal.SIGINT.value
_writes, _waiting = 0, False


def catch_signals() -> None:
    """Put the handler in place, for the main thread."""
    signal.signal(signal.SIGINT, _on_signal)
    signal.signal(signal.SIGTERM, _on_signal)
    # `nohup` has it ignored: there a closed terminal must not end the sweep.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _on_signal)


def exit_code() -> int:
    """128 + the signal, as shells have it: 130 for Ctrl-C, 143 for SIGTERM, 129 for a closed terminal."""
    return 128 + _last_number


@contextmanager
def held_back() -> Iterator[None]:
    """Within this a signal waits; it interrupts when the outermost such block is left."""
    global _writes, _waiting
    _writes += 1
    try:
        yield
    finally:
        _writes -= 1
        if _waiting and _writes == 0:
            _waiting = False
            raise KeyboardInterrupt


def _on_signal(number: int, frame: FrameType | None) -> None:
    # What follows ends trials and runs in an orderly way within seconds: a second Ctrl-C must not cut that short.
    global _last_signal, _last_number, _waiting
    if time.monotonic() - _last_signal <= PATIENCE_SECONDS:
        return
    _last_signal, _last_number = time.monotonic(), number
    if _writes:
        _waiting = True
        return
    raise KeyboardInterrupt
