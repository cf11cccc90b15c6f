"""The state bank over Ray actors: the client, and how a trial starts a bank or connects to it by name.

Writing puts the states into the node's shared object store (one copy) and returns; the actor keeps that very block.
Reading whole blocks back hands out references, so that the only copy is the one into the caller's buffer.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from storage.bank.contract import BankLostError, BankTimeoutError, Holdings, StateBank
from storage.bank.layout import BankLayout, Float32, Float64, Int64, Wire, as_slice, decode_into
from storage.bank.reservoir import NO_LIMIT, Offer, Reservoir, merge_reservoirs
from storage.bank.shard import THREADS, Answer, BankShard
from storage.bank.snapshot import Part, read_header, remove_snapshot
from storage.errors import StorageError

_INLINE_BYTES = 100_000
"""Smaller blocks travel inside the call, where Ray would put them as well."""
_PENDING_WRITES = 256
"""Unanswered writes of one client before it waits for the oldest."""
_GRACE_S = 30.0
"""How much longer than the shard's own timeout the client waits for any answer of the shard."""

Request = tuple[int, Int64, "ray.ObjectRef[list[Answer]]"]
"""Shard, positions in the caller's rows, and the coming answer."""
Fetched = tuple[Wire, Int64, Int64]
"""Rows, take, place, as an `Answer` whose rows have been fetched; place counts in the caller's rows."""


def shard_name(trial: str, shard: int) -> str:
    """The name of a shard's actor within the namespace of its sweep."""
    return f"bank-{trial}-{shard}"


def start_sharded_bank(
    layout: BankLayout,
    shards: int,
    namespace: str,
    trial: str,
    timeout_s: float = 60.0,
    node_ids: Sequence[str] | None = None,
) -> "ShardedBank":
    """Start one actor per shard. They end with `close`, with the returned client, or with this process.

    Args:
        layout: the bank's shape.
        shards: S, from 1 to the number of rows.
        namespace: of the sweep; actors of other sweeps are out of reach.
        trial: names the bank within the sweep.
        timeout_s: seconds a read waits for late rows.
        node_ids: (S,) Ray node on which each shard runs; default: Ray decides.

    Raises:
        StorageError: shards do not fit the rows, or this trial has a bank already.
        BankLostError: an actor did not come up.
    """
    layout.shard_range(0, shards)
    if node_ids is not None and len(node_ids) != shards:
        raise StorageError(f"{len(node_ids)} nodes are named for {shards} shards of the bank; name one per shard")
    actors: list[Any] = []
    for shard in range(shards):
        # Not soft: Ray places an actor without CPUs that is only softly bound anywhere.
        where = NodeAffinitySchedulingStrategy(node_ids[shard], soft=False) if node_ids else "DEFAULT"
        # Typed as Any: Ray's hints do not know `concurrency_groups`.
        declare: Any = ray.remote
        kind = declare(concurrency_groups=THREADS, num_cpus=0, max_restarts=0, scheduling_strategy=where)(BankShard)
        named = kind.options(name=shard_name(trial, shard), namespace=namespace)
        try:
            actors.append(named.remote(layout, shard, shards))
        except ray.exceptions.ActorAlreadyExistsError:
            for started in actors:
                ray.kill(started)
            raise StorageError(
                f"trial {trial!r} in {namespace!r} has a state bank already; close it or connect to it"
            ) from None
    bank = ShardedBank(layout, actors, namespace, trial, timeout_s, owner=True)
    bank.counters()  # every shard answers, or the error says which does not
    return bank


def connect_sharded_bank(namespace: str, trial: str, timeout_s: float = 60.0) -> "ShardedBank":
    """A client for another worker of the same trial. Closing it leaves the actors alone.

    Raises:
        BankLostError: the bank was never started, or has ended.
    """

    def find(shard: int) -> Any:
        try:
            return ray.get_actor(shard_name(trial, shard), namespace=namespace)
        except ValueError:
            raise BankLostError(
                f"shard {shard} of the state bank of trial {trial!r} is not running in {namespace!r}; "
                "start the bank before its workers"
            ) from None

    first = find(0)
    layout, shards = ask(first.describe.remote(), f"shard 0 of the state bank of trial {trial!r}", timeout_s)
    actors = [first, *(find(shard) for shard in range(1, shards))]
    return ShardedBank(layout, actors, namespace, trial, timeout_s, owner=False)


class ShardedBank(StateBank):
    """A client of a trial's bank. Pickling one gives a client connected by name, never a second owner."""

    def __init__(
        self, layout: BankLayout, actors: list[Any], namespace: str, trial: str, timeout_s: float, owner: bool
    ) -> None:
        """Use `start_sharded_bank` or `connect_sharded_bank`."""
        super().__init__(layout, timeout_s)
        self._actors, self._namespace, self._trial, self._owner = actors, namespace, trial, owner
        self._pending: list[tuple[int, ray.ObjectRef[None]]] = []
        self._prefetched: dict[tuple[int, bytes], Future[list[Fetched]]] = {}
        self._fetchers = ThreadPoolExecutor(max_workers=4, thread_name_prefix="bank-prefetch")
        self._closed = False

    def __reduce__(self) -> tuple[Callable[..., "ShardedBank"], tuple[str, str, float]]:
        return connect_sharded_bank, (self._namespace, self._trial, self.timeout_s)

    @property
    def shards(self) -> int:
        """S, the number of shards."""
        return len(self._actors)

    def flush(self) -> None:
        """See `StateBank.flush`."""
        self._settle(wait=True)

    def snapshot(self, folder: Path, step: int | None = None) -> None:
        """See `StateBank.snapshot`. Every shard writes its own file, so all nodes must see `folder`."""
        self.flush()
        remove_snapshot(folder)
        newest = self._newest() if step is None else step
        holds = self._holds(newest)
        drawn = self._reservoir(newest + 1) if holds.reservoir else ()
        limit = int(drawn.keys[-1]) if drawn else NO_LIMIT
        coming = [
            actor.snapshot.remote(
                str(folder.absolute()), newest, Part(shard, self.shards, holds, limit), self.timeout_s
            )
            for shard, actor in enumerate(self._actors)
        ]
        for shard, written in enumerate(coming):
            self._ask(shard, written, patience_s=self.timeout_s + 600.0)

    def restore(self, folder: Path) -> None:
        """See `StateBank.restore`."""
        self.flush()
        self._prefetched.clear()
        self._limit = 0, NO_LIMIT
        header = read_header(folder, self.layout)
        self._all("restore", str(folder.absolute()), header, patience_s=600.0)

    def clear(self) -> None:
        """See `StateBank.clear`."""
        self.flush()
        self._prefetched.clear()
        self._limit = 0, NO_LIMIT
        self._all("clear")

    def counters(self) -> dict[str, int]:
        """See `StateBank.counters`; includes all that this client wrote before."""
        self.flush()
        answers = self._all("counters")
        return {name: sum(answer[name] for answer in answers) for name in answers[0]}

    def close(self) -> None:
        """Flush; the client that started the bank also ends its actors, even when the flush fails."""
        if self._closed:
            return
        try:
            self.flush()
        finally:
            self._closed = True
            for actor in self._actors if self._owner else []:
                ray.kill(actor)
            self._fetchers.shutdown(wait=False, cancel_futures=True)
            self._prefetched.clear()

    def _newest(self) -> int:
        self.flush()
        return max(self._all("newest"))

    def _holds(self, step: int) -> Holdings:
        self.flush()
        return Holdings(*(any(answers) for answers in zip(*self._all("holds", step), strict=True)))

    def _deposit(self, step: int, rows: Int64, block: Wire, zeroed: npt.NDArray[np.bool_]) -> None:
        self._settle()
        for shard, place in self._split(rows):
            part = np.ascontiguousarray(_select(block, place))
            big = part.nbytes > _INLINE_BYTES
            given = ray.put(part) if big else part
            handle = [given] if big else []
            write = self._actors[shard].put_states.remote(step, rows[place], given, zeroed[place], handle)
            self._pending.append((shard, write))

    def _merge_moments(self, step: int, rows: Int64, partials: Float64) -> None:
        self._settle()
        for shard, place in self._split(rows):
            write = self._actors[shard].put_moments.remote(step, rows[place], partials[place])
            self._pending.append((shard, write))

    def _withdraw(self, step: int, rows: Int64, out: Float32) -> None:
        self._settle()
        for key in [key for key in self._prefetched if key[0] < step]:
            del self._prefetched[key]
        for block, take, place in self._prefetch_result(step, rows) or self._collect(self._request(step, rows), step):
            decode_into(out, place, block, take)

    def _prefetch_result(self, step: int, rows: Int64) -> list[Fetched] | None:
        started = self._prefetched.pop((step, rows.tobytes()), None)
        try:
            return started.result() if started else None
        except BankTimeoutError:
            return None  # its clock began before this call; the caller still has the whole timeout

    def _prefetch(self, step: int, rows: Int64) -> None:
        self._settle()
        self._prefetched[step, rows.tobytes()] = self._fetchers.submit(self._collect, self._request(step, rows), step)

    def _request(self, step: int, rows: Int64) -> list[Request]:
        return [
            (shard, place, self._actors[shard].read.remote(step - 1, rows[place], self.timeout_s))
            for shard, place in self._split(rows)
        ]

    def _collect(self, requests: list[Request], step: int) -> list[Fetched]:
        collected: list[Fetched] = []
        for shard, place, coming in requests:
            for block, take, local in self._ask(shard, coming, f" at step {step}"):
                rows = self._ask(shard, block, f" at step {step}") if isinstance(block, ray.ObjectRef) else block
                collected.append((rows, take, place[local]))
        return collected

    def _moments(self, step: int) -> Float64:
        self._settle()
        return np.concatenate(self._all("moments", step, self.timeout_s))

    def _offer(self, offer: Offer) -> None:
        self._settle()
        shard_m = self.layout.shard_of(offer.rows, self.shards)
        for shard, place in self._split(offer.reported):
            mine = np.flatnonzero(shard_m == shard)
            part = offer._replace(
                reported=offer.reported[place],
                keys=offer.keys[mine],
                rows=offer.rows[mine],
                states=_select(offer.states, mine),
            )
            self._pending.append((shard, self._actors[shard].offer.remote(part)))

    def _reservoir(self, step: int) -> Reservoir:
        self._settle()
        return merge_reservoirs(self._all("reservoir", step, self.timeout_s), self.layout.capacity)

    def _reservoir_states(self, steps: Int64, rows: Int64, out: Float32) -> None:
        self._settle()
        coming = [
            (shard, place, self._actors[shard].reservoir_states.remote(steps[place], rows[place]))
            for shard, place in self._split(rows)
        ]
        for shard, place, states in coming:
            decode_into(out, place, self._ask(shard, states), np.arange(place.size))

    def _split(self, rows: Int64) -> list[tuple[int, Int64]]:
        shard_n = self.layout.shard_of(rows, self.shards)
        return [(int(shard), np.flatnonzero(shard_n == shard)) for shard in np.unique(shard_n)]

    def _settle(self, wait: bool = False) -> None:
        """Raise the first error of earlier writes; with `wait`, wait for all of them."""
        if self._closed:
            raise StorageError(f"the state bank of trial {self._trial!r} is closed; open a new one")
        refs = [ref for _, ref in self._pending]
        surplus = len(refs) if wait else max(0, len(refs) - _PENDING_WRITES)
        done = set(refs[:surplus])
        if refs[surplus:]:
            done.update(ray.wait(refs[surplus:], num_returns=len(refs) - surplus, timeout=0, fetch_local=False)[0])
        settled = [entry for entry in self._pending if entry[1] in done]
        self._pending = [entry for entry in self._pending if entry[1] not in done]
        errors: list[Exception] = []
        for shard, ref in settled:
            try:
                self._ask(shard, ref)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _all(self, method: str, *args: Any, patience_s: float | None = None) -> list[Any]:
        coming = [getattr(actor, method).remote(*args) for actor in self._actors]
        return [self._ask(shard, ref, patience_s=patience_s) for shard, ref in enumerate(coming)]

    def _ask(self, shard: int, ref: "ray.ObjectRef[Any]", when: str = "", patience_s: float | None = None) -> Any:
        lo, hi = self.layout.shard_range(shard, self.shards)
        who = f"shard {shard} (rows {lo} to {hi - 1}) of the state bank of trial {self._trial!r}"
        return ask(ref, who, self.timeout_s if patience_s is None else patience_s, when)


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


def _select(block: Wire, place: Int64) -> Wire:
    """block[place] without a copy where `place` is a range."""
    span = as_slice(place)
    return block[place] if span is None else block[span]
