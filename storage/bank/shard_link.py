"""One shard as a client reaches it: through shared memory on the shard's own node, else through the calls.

Legend: m rows of one call, E elements of a packed row, n rows of the caller's array.
"""

import logging
from typing import Any, NamedTuple

import numpy as np
import ray

from storage.bank.contract import BankLostError, BankTimeoutError
from storage.bank.layout import BankLayout, Float32, Int64, Wire
from storage.bank.segment import attach
from storage.bank.shard import Description, Rows
from storage.bank.slots import Slots
from storage.bank.wire import as_range, copy_rows, decode, encoded

_GRACE_S = 30.0
"""How much longer than the shard's own timeout the client waits for any answer of the shard."""
_log = logging.getLogger(__name__)


class Report(NamedTuple):
    """What a shard is told of rows that a client wrote."""

    rows: Int64
    zeroed: Int64
    """Those of them that the client has zeroed."""
    block: Wire | None
    """Their states (m, E) in the bank's precision, if they have to travel."""


def shard_name(trial: str, shard: int) -> str:
    """The name of a shard's actor within the namespace of its sweep."""
    return f"bank-{trial}-{shard}"


class ShardLink:
    """A client's way to one shard."""

    def __init__(self, actor: Any, layout: BankLayout, shard: int, described: Description, trial: str) -> None:
        """Args: actor: of the shard. shard: its number. described: what the actor says of itself."""
        self.actor, self._layout = actor, layout
        self.lo, self.hi = layout.shard_range(shard, described.shards)
        self.who = who(layout, shard, described.shards, trial)
        memory = None
        if described.address and described.node == ray.get_runtime_context().get_node_id():
            memory = attach(described.address)
            if memory is None:
                _log.warning("%s is on this node, but its memory is out of reach; states go through Ray", self.who)
        self.slots = Slots(self.lo, self.hi, layout, memory) if memory is not None else None
        """The shard's rows in memory that this process shares with it; None if states have to travel."""

    def write(self, step: int, rows: Int64, states: Float32, take: Int64) -> Report:
        """Write states[take] (m, E) as those of `rows` where the shard finds them, and say what to `report`."""
        if self.slots is None:
            return Report(rows, rows[:0], encoded(_taken(states, take), self._layout))
        return Report(rows, self.slots.write(step, rows, states, take), None)

    def report(self, step: int, report: Report) -> "ray.ObjectRef[None]":
        """Tell the shard of rows that were written; the reference says when it has taken them."""
        told: ray.ObjectRef[None] = self.actor.put_states.remote(
            step, _compact(report.rows), _compact(report.zeroed), report.block
        )
        return told

    def request(self, step: int, rows: Int64, timeout_s: float) -> "ray.ObjectRef[Wire | None]":
        """Ask for the states that `rows` had at the end of `step`, for `deliver`."""
        ask_for = self.actor.read_states if self.slots is None else self.actor.await_states
        coming: ray.ObjectRef[Wire | None] = ask_for.remote(step, _compact(rows), timeout_s)
        return coming

    def deliver(self, answer: Wire | None, step: int, rows: Int64, place: Int64, out: Float32) -> None:
        """out[place] = the states (m, E) that were asked for, now that the answer is here."""
        if answer is not None:
            copy_rows(out, place, answer, np.arange(rows.size), decode)
            return
        assert self.slots is not None, "a shard that is reached by calls alone answers with the states"
        self.slots.read(step, rows, place, out)

    def ask(self, ref: "ray.ObjectRef[Any]", patience_s: float, when: str = "") -> Any:
        """See `ask`."""
        return ask(ref, self.who, patience_s, when)


def who(layout: BankLayout, shard: int, shards: int, trial: str) -> str:
    """A shard as errors name it."""
    lo, hi = layout.shard_range(shard, shards)
    return f"shard {shard} (rows {lo} to {hi - 1}) of the state bank of trial {trial!r}"


def ask(ref: "ray.ObjectRef[Any]", who: str, patience_s: float, when: str = "") -> Any:
    """The value of a call to shard `who`; the shard's own errors as they were raised, its death as BankLostError."""
    try:
        return ray.get(ref, timeout=patience_s + _GRACE_S)
    except ray.exceptions.GetTimeoutError:
        raise BankTimeoutError(f"{who} gave no answer{when} in {patience_s + _GRACE_S:g} s; see its log") from None
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, ray.exceptions.RayError):
            raise _lost(who, when, cause) from error
        raise cause from None
    except ray.exceptions.RayError as error:
        raise _lost(who, when, error) from error


def _lost(who: str, when: str, error: Exception) -> BankLostError:
    return BankLostError(f"{who} is lost{when} ({type(error).__name__}); restart the trial from its last checkpoint")


def _compact(rows: Int64) -> Rows:
    span = as_range(rows)
    return rows if span is None else (span.start, span.stop)


def _taken(states: Float32, take: Int64) -> Float32:
    """states[take] without a copy where `take` is a range."""
    span = as_range(take)
    return states[take] if span is None else states[span.start : span.stop]
