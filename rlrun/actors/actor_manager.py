"""FaultTolerantActorManager: calls to a set of Ray actors that may fail.

Owns which actors are healthy, which calls are in flight to each, and their restarts. Knows nothing
of what the actors do. An exception of the called code is a result like any other, and the actor
works on; only an error of Ray, which means that the actor is gone or unreachable, makes it
unhealthy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

ActorFactory = Callable[[int, bool], Any]
"""``(actor_id, recreated) -> actor handle``."""


@dataclass(frozen=True)
class CallResult:
    """The outcome of one call.

    Attributes:
        error: the exception that the called code raised, or Ray's.
        actor_failed: whether the error is Ray's, which makes the actor unhealthy.
    """

    actor_id: int
    tag: Hashable = None
    value: Any = None
    error: BaseException | None = None
    actor_failed: bool = False

    @property
    def ok(self) -> bool:
        """Whether the call returned."""
        return self.error is None

    def death(self) -> str:
        """Why the actor died, as one line from the twenty of Ray's message."""
        line = " ".join(str(self.error).split()).rpartition("Worker exit detail: ")[2]
        return line.partition(" Some common causes")[0]


@dataclass
class _Actor:
    handle: Any
    healthy: bool = True
    restarts: int = 0
    in_flight: dict[Any, tuple[Hashable, float]] = field(default_factory=dict)
    """Object reference -> (tag, time of the call on the monotonic clock)."""


class FaultTolerantActorManager:
    """Actors by id, counted from ``first_id``.

    Args:
        factory: makes the actor of an id, at the start and at a restart.
        num_actors: how many to start with.
        max_in_flight: asynchronous calls that may be unfinished for each actor; more are dropped.
        max_restarts: for each actor.
        restart_delay_s: how long a restart waits first.
        first_id: id of the first actor; 1 for env runners, whose 0 is in the driver.
    """

    def __init__(
        self,
        factory: ActorFactory,
        num_actors: int,
        *,
        max_in_flight: int = 1,
        max_restarts: int = 1000,
        restart_delay_s: float = 0.0,
        first_id: int = 1,
    ) -> None:
        self._factory = factory
        self._max_in_flight = max_in_flight
        self._max_restarts, self._restart_delay_s = max_restarts, restart_delay_s
        self._actors: dict[int, _Actor] = {}
        self._first_id = first_id
        for _ in range(num_actors):
            self.add_actor()

    @property
    def actor_ids(self) -> list[int]:
        """All ids, healthy or not, in ascending order."""
        return sorted(self._actors)

    @property
    def healthy_actor_ids(self) -> list[int]:
        """Ids of the actors that answered their last call, in ascending order."""
        return [actor_id for actor_id in self.actor_ids if self._actors[actor_id].healthy]

    @property
    def num_restarts(self) -> int:
        """Restarts of all actors since the start."""
        return sum(actor.restarts for actor in self._actors.values())

    def num_in_flight(self, actor_id: int | None = None) -> int:
        """Unfinished asynchronous calls, of one actor or of all."""
        actors = self._actors.values() if actor_id is None else [self._actors[actor_id]]
        return sum(len(actor.in_flight) for actor in actors)

    def oldest_call_s(self, actor_id: int) -> float:
        """Seconds since the oldest unfinished asynchronous call of an actor; 0 without any."""
        calls = self._actors[actor_id].in_flight.values()
        return time.monotonic() - min(started for _, started in calls) if calls else 0.0

    def add_actor(self) -> int:
        """Start one more actor; returns its id, one above the highest."""
        actor_id = max(self._actors, default=self._first_id - 1) + 1
        self._actors[actor_id] = _Actor(self._factory(actor_id, False))
        return actor_id

    def remove_actor(self, actor_id: int) -> None:
        """End an actor and forget its id."""
        _kill(self._actors.pop(actor_id).handle)

    def set_unhealthy(self, actor_id: int) -> None:
        """Send the actor nothing until it is restored; its unfinished calls are forgotten."""
        actor = self._actors[actor_id]
        actor.healthy = False
        actor.in_flight.clear()

    def foreach_actor(
        self,
        method: str,
        *args: Any,
        timeout_s: float | None = None,
        healthy_only: bool = True,
        actor_ids: Iterable[int] | None = None,
    ) -> list[CallResult]:
        """Call ``method(*args)`` on each actor at once; results by id.

        Calls that take longer than ``timeout_s`` are dropped: they have no result.
        """
        chosen = self.actor_ids if actor_ids is None else sorted(actor_ids)
        called = [i for i in chosen if self._actors[i].healthy or not healthy_only]
        return self.call_each(dict.fromkeys(called, (method, *args)), timeout_s=timeout_s)

    def call_each(
        self, calls: Mapping[int, tuple[Any, ...]], *, timeout_s: float | None = None
    ) -> list[CallResult]:
        """Like `foreach_actor`, with ``(method, *args)`` for each actor id."""
        refs = {
            getattr(self._actors[i].handle, method).remote(*args): i
            for i, (method, *args) in calls.items()
        }
        if not refs:
            return []
        ready, _ = ray.wait(list(refs), num_returns=len(refs), timeout=timeout_s)
        results = self._results([(refs[ref], ref, None) for ref in ready])
        return sorted(results, key=lambda result: result.actor_id)

    def foreach_actor_async(
        self, method: str, *args: Any, tag: Hashable = None, actor_ids: Iterable[int] | None = None
    ) -> list[int]:
        """Send a call to each healthy actor that has room for it, without waiting.

        Returns:
            Ids of the actors that the call was sent to; the others are unhealthy or have
            ``max_in_flight`` unfinished calls.
        """
        taken = []
        for actor_id in self.actor_ids if actor_ids is None else sorted(actor_ids):
            actor = self._actors[actor_id]
            if actor.healthy and len(actor.in_flight) < self._max_in_flight:
                ref = getattr(actor.handle, method).remote(*args)
                actor.in_flight[ref] = (tag, time.monotonic())
                taken.append(actor_id)
        return taken

    def fetch_ready_async_reqs(
        self,
        *,
        tags: Iterable[Hashable] | None = None,
        timeout_s: float | None = 0.0,
        gather_s: float = 0.0,
    ) -> list[CallResult]:
        """The results that are ready, by ascending id; waits ``timeout_s`` for the first of them.

        An actor's results are returned in the order of its calls, even if Ray has a later one
        first.

        Args:
            tags: fetch only calls with one of these tags; None fetches all.
            timeout_s: None waits as long as it takes.
            gather_s: how much longer to wait for all the others.
        """
        wanted = None if tags is None else set(tags)
        pending = {
            actor_id: {
                ref: tag
                for ref, (tag, _) in actor.in_flight.items()
                if wanted is None or tag in wanted
            }
            for actor_id, actor in sorted(self._actors.items())
        }
        refs = [ref for tag_of in pending.values() for ref in tag_of]
        if not refs:
            return []
        first, others = ray.wait(refs, num_returns=1, timeout=timeout_s)
        ready = set(first)
        if first and others:
            ready.update(ray.wait(others, num_returns=len(others), timeout=gather_s)[0])
        finished = [
            (actor_id, ref, tag_of[ref])
            for actor_id, tag_of in pending.items()
            for ref in takewhile(ready.__contains__, tag_of)
        ]
        for actor_id, ref, _ in finished:
            del self._actors[actor_id].in_flight[ref]
        return self._results(finished)

    def probe_unhealthy_actors(self, method: str = "ping", timeout_s: float = 30.0) -> list[int]:
        """Call unhealthy actors; those that answer in time are healthy again and are returned."""
        unhealthy = [i for i in self.actor_ids if not self._actors[i].healthy]
        results = self.foreach_actor(
            method, actor_ids=unhealthy, healthy_only=False, timeout_s=timeout_s
        )
        restored = [result.actor_id for result in results if result.ok]
        for actor_id in restored:
            self._actors[actor_id].healthy = True
        return restored

    def can_restart(self, actor_id: int) -> bool:
        """Whether the actor has a restart left."""
        return self._actors[actor_id].restarts < self._max_restarts

    def restart(self, *actor_ids: int) -> None:
        """Replace actors by new ones with the same ids; their unfinished calls are forgotten.

        Raises:
            RuntimeError: one has no restart left; none is replaced.
        """
        for actor_id in actor_ids:
            if not self.can_restart(actor_id):
                restarts = self._actors[actor_id].restarts
                raise RuntimeError(f"actor {actor_id} was restarted {restarts} times already")
        for actor_id in actor_ids:
            self.set_unhealthy(actor_id)
            _kill(self._actors[actor_id].handle)
        if self._restart_delay_s > 0:
            time.sleep(self._restart_delay_s)
        for actor_id in actor_ids:
            actor = self._actors[actor_id]
            actor.handle = self._factory(actor_id, True)
            actor.restarts += 1
            actor.healthy = True

    def stop(self) -> None:
        """End all actors."""
        for actor_id in self.actor_ids:
            self.remove_actor(actor_id)

    def _results(self, finished: Sequence[tuple[int, Any, Hashable]]) -> list[CallResult]:
        """Fetch finished calls, ``(actor_id, reference, tag)``; all at once if none has failed."""
        try:
            values = ray.get([ref for _, ref, _ in finished])
        except RayError:
            return [self._result(*call) for call in finished]
        return [
            CallResult(actor_id, tag, value)
            for (actor_id, _, tag), value in zip(finished, values, strict=True)
        ]

    def _result(self, actor_id: int, ref: Any, tag: Hashable) -> CallResult:
        """Fetch a finished call."""
        try:
            return CallResult(actor_id, tag, value=ray.get(ref))
        except RayTaskError as error:
            return CallResult(actor_id, tag, error=_original(error))
        except RayError as error:
            self.set_unhealthy(actor_id)
            return CallResult(actor_id, tag, error=error, actor_failed=True)


def _original(error: RayTaskError) -> BaseException:
    """The exception as it was raised in the actor, without Ray's frames around it."""
    cause: BaseException = error if error.cause is None else error.cause
    cause.__cause__ = None
    cause.__suppress_context__ = True
    return cause.with_traceback(None)


def _kill(handle: Any) -> None:
    try:
        ray.kill(handle, no_restart=True)
    except (RayError, ValueError):  # Ray is down already, or never knew it
        return
