"""The state bank over Ray actors: the client, and how a trial starts a bank or connects to it by name.

A deposit copies the states into the memory of their shard, tells the shard and returns; a withdrawal asks the shard
whether the rows are there and copies them out. Only rows of a shard on another node travel, through Ray's object store.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from storage.bank.contract import BankLostError, BankTimeoutError, Holdings, StateBank
from storage.bank.layout import BankLayout, Float32, Float64, Int64
from storage.bank.reservoir import NO_LIMIT, Offer, Reservoir, merge_reservoirs
from storage.bank.shard import THREADS, BankShard
from storage.bank.shard_link import ShardLink, ask, shard_name, who
from storage.bank.snapshot import Part, read_header, remove_snapshot
from storage.bank.wire import copy_rows, decode
from storage.errors import StorageError

_PENDING_WRITES = 256
"""Unanswered writes of one client before it waits for the oldest."""

Write = tuple[ShardLink, int, "ray.ObjectRef[None]"]
"""Shard, step, and the answer that it is stored."""
Request = tuple[ShardLink, Int64, "ray.ObjectRef[Any]"]
"""Shard, positions in the caller's rows, and the coming answer."""


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
    return ShardedBank(layout, actors, namespace, trial, timeout_s, owner=True)


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
    described = ask(first.describe.remote(), f"shard 0 of the state bank of trial {trial!r}", timeout_s)
    actors = [first, *(find(shard) for shard in range(1, described.shards))]
    return ShardedBank(described.layout, actors, namespace, trial, timeout_s, owner=False)


class ShardedBank(StateBank):
    """A client of a trial's bank. Pickling one gives a client connected by name, never a second owner."""

    def __init__(
        self, layout: BankLayout, actors: list[Any], namespace: str, trial: str, timeout_s: float, owner: bool
    ) -> None:
        """Use `start_sharded_bank` or `connect_sharded_bank`."""
        super().__init__(layout, timeout_s)
        self._namespace, self._trial, self._owner = namespace, trial, owner
        # Every shard answers, or the error says which does not.
        coming = [actor.describe.remote() for actor in actors]
        names = [who(layout, shard, len(actors), trial) for shard in range(len(actors))]
        described = [ask(answer, name, timeout_s) for answer, name in zip(coming, names, strict=True)]
        self._links = [ShardLink(actors[shard], layout, shard, described[shard], trial) for shard in range(len(actors))]
        self._pending: list[Write] = []
        self._prefetched: dict[tuple[int, bytes], list[Request]] = {}
        self._pullers = ThreadPoolExecutor(max_workers=4, thread_name_prefix="bank-prefetch")
        self._closed = False

    def __reduce__(self) -> tuple[Callable[..., "ShardedBank"], tuple[str, str, float]]:
        return connect_sharded_bank, (self._namespace, self._trial, self.timeout_s)

    @property
    def shards(self) -> int:
        """S, the number of shards."""
        return len(self._links)

    def flush(self) -> None:
        """See `StateBank.flush`."""
        self._settle(len(self._pending))

    def snapshot(self, folder: Path, step: int | None = None) -> None:
        """See `StateBank.snapshot`. Every shard writes its own file, so all nodes must see `folder`."""
        self.flush()
        remove_snapshot(folder)
        newest = self._newest() if step is None else step
        holds = self._holds(newest)
        drawn = self._reservoir(newest + 1) if holds.reservoir else ()
        limit = int(drawn.keys[-1]) if drawn else NO_LIMIT
        parts = [Part(shard, self.shards, holds, limit) for shard in range(self.shards)]
        coming = [
            link.actor.snapshot.remote(str(folder.absolute()), newest, part, self.timeout_s)
            for link, part in zip(self._links, parts, strict=True)
        ]
        for link, written in zip(self._links, coming, strict=True):
            link.ask(written, self.timeout_s + 600.0)

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
            for link in self._links:
                link.slots = None  # the memory is free once the last process has let go of it
                if self._owner:
                    ray.kill(link.actor)
            self._pullers.shutdown(wait=False, cancel_futures=True)
            self._prefetched.clear()

    def _newest(self) -> int:
        self.flush()
        return max(self._all("newest"))

    def _holds(self, step: int) -> Holdings:
        self.flush()
        return Holdings(*(any(answers) for answers in zip(*self._all("holds", step), strict=True)))

    def _deposit(self, step: int, rows: Int64, states: Float32) -> None:
        # Its rows go where those of step - 2 lie: the shard must have done with them.
        self._settle(sum(written <= step - 2 for _, written, _ in self._pending))
        reports = [(link, link.write(step, rows[place], states, place)) for link, place in self._split(rows)]
        # Nobody is told before all is written: shards that look at their rows would slow down the copying.
        self._pending += [(link, step, link.report(step, report)) for link, report in reports]

    def _merge_moments(self, step: int, rows: Int64, partials: Float64) -> None:
        self._settle()
        for link, place in self._split(rows):
            self._pending.append((link, step, link.actor.put_moments.remote(step, rows[place], partials[place])))

    def _withdraw(self, step: int, rows: Int64, out: Float32) -> None:
        self._settle()
        for key in [key for key in self._prefetched if key[0] < step]:
            del self._prefetched[key]
        started = self._prefetched.pop((step, rows.tobytes()), None)
        try:
            self._deliver(started or self._request(step, rows), step, rows, out)
        except BankTimeoutError:
            if not started:
                raise
            # Its clock began before this call; the caller still has the whole timeout.
            self._deliver(self._request(step, rows), step, rows, out)

    def _prefetch(self, step: int, rows: Int64) -> None:
        self._refuse_closed()
        requests = self._prefetched[step, rows.tobytes()] = self._request(step, rows)
        travelling = [coming for link, _, coming in requests if link.slots is None]
        if travelling:  # Ray brings an object here when somebody waits for it
            self._pullers.submit(ray.wait, travelling, num_returns=len(travelling), timeout=self.timeout_s)

    def _request(self, step: int, rows: Int64) -> list[Request]:
        return [(link, place, link.request(step - 1, rows[place], self.timeout_s)) for link, place in self._split(rows)]

    def _deliver(self, requests: list[Request], step: int, rows: Int64, out: Float32) -> None:
        for link, place, coming in requests:
            answer = link.ask(coming, self.timeout_s, f" at step {step}")
            link.deliver(answer, step - 1, rows[place], place, out)

    def _moments(self, step: int) -> Float64:
        self._settle()
        return np.concatenate(self._all("moments", step, self.timeout_s))

    def _offer(self, offer: Offer) -> None:
        self._settle()
        for link, place in self._split(offer.reported):
            mine = np.flatnonzero((offer.rows >= link.lo) & (offer.rows < link.hi))
            part = Offer(
                step=offer.step,
                seed=offer.seed,
                reported=offer.reported[place],
                keys=offer.keys[mine],
                rows=offer.rows[mine],
                states=offer.states[mine],
                limit=offer.limit,
            )
            self._pending.append((link, offer.step, link.actor.offer.remote(part)))

    def _reservoir(self, step: int) -> Reservoir:
        self._settle()
        return merge_reservoirs(self._all("reservoir", step, self.timeout_s), self.layout.capacity)

    def _reservoir_states(self, steps: Int64, rows: Int64, out: Float32) -> None:
        self._settle()
        coming = [
            (link, place, link.actor.reservoir_states.remote(steps[place], rows[place]))
            for link, place in self._split(rows)
        ]
        for link, place, states in coming:
            copy_rows(out, place, link.ask(states, self.timeout_s), np.arange(place.size), decode)

    def _split(self, rows: Int64) -> list[tuple[ShardLink, Int64]]:
        """The shards of `rows`, each with the positions of its rows."""
        shard_n = self.layout.shard_of(rows, self.shards)
        return [(self._links[shard], np.flatnonzero(shard_n == shard)) for shard in np.unique(shard_n)]

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StorageError(f"the state bank of trial {self._trial!r} is closed; open a new one")

    def _settle(self, oldest: int = 0) -> None:
        """Raise the first error of earlier writes; wait for as many of the oldest ones."""
        self._refuse_closed()
        refs = [ref for _, _, ref in self._pending]
        oldest = max(oldest, len(refs) - _PENDING_WRITES)
        done = set(refs[:oldest])
        if refs[oldest:]:
            done.update(ray.wait(refs[oldest:], num_returns=len(refs) - oldest, timeout=0, fetch_local=False)[0])
        settled = [write for write in self._pending if write[2] in done]
        self._pending = [write for write in self._pending if write[2] not in done]
        errors: list[Exception] = []
        for link, _, ref in settled:
            try:
                link.ask(ref, self.timeout_s)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _all(self, method: str, *args: Any, patience_s: float | None = None) -> list[Any]:
        coming = [getattr(link.actor, method).remote(*args) for link in self._links]
        patience_s = self.timeout_s if patience_s is None else patience_s
        return [link.ask(answer, patience_s) for link, answer in zip(self._links, coming, strict=True)]
