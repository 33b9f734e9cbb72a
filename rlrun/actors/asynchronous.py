"""`AsynchronousSampler`: env runners go on sampling while a learner learns from their replies.

Owns which requests each runner has not answered, and the replies that have not been taken. Must not
know learning. Everything is bounded: a runner has at most `max_requests_in_flight_per_env_runner`
requests, and gets no further one while ``queue_size`` replies wait; so a slow learner makes the
runners wait, and memory does not grow.

There is no thread. Runners are processes of their own, so sampling and learning overlap as long as
requests are under way when the driver turns to learning; each `take` sends new ones before it
returns. What cannot be promised with remote runners is which reply comes first, and so equal runs.

A fragment is a function of its request, the weights that went with it and the state in which its
runner was. So a checkpoint does not wait for replies and holds no rows: it has each runner's state
after the last reply that was taken, and the requests since then, answered or not. Asked again, the
runner sends the same rows: none is lost, and none is doubled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rlrun.actors.env_runner_group import EnvRunnerGroup, Round
from rlrun.sampling.runner_messages import SampleRequest

if TYPE_CHECKING:  # they import Ray, which runners in this process do without
    from rlrun.actors.actor_manager import CallResult
    from rlrun.actors.remote_runners import Task


@dataclass(frozen=True)
class _Asked:
    """A request as it was sent to a runner, and may be sent again."""

    request: SampleRequest
    weights: Any


@dataclass(frozen=True)
class _Untaken:
    """A reply that has come and waits to be taken."""

    runner_index: int
    asked: _Asked
    reply: Any
    state: bytes | None
    """The runner's, after the reply."""


class AsynchronousSampler:
    """Streams replies of a group's runners, the oldest first; without remote ones it samples here.

    While one is in use, the group must not be sampled from otherwise.

    Args:
        group: the runners, restarted as its fault-tolerance settings say. A restarted runner gets
            the same requests again.
        next_request: makes the request that is sent next.
        queue_size: replies that may wait before runners get nothing further to do.
        refill: ask a runner again as soon as its reply has come; otherwise `ask` does.
        task: what runners do with a request, a module-level function; None samples a fragment.
    """

    def __init__(
        self,
        group: EnvRunnerGroup,
        next_request: Callable[[], SampleRequest],
        *,
        queue_size: int = 16,
        refill: bool = True,
        task: Task | None = None,
    ) -> None:
        self._group, self._next_request, self._task = group, next_request, task
        self._queue_size, self._refill = queue_size, refill
        self._remote = group.remote
        self.weights: Any = None
        self.weights_version = -1
        self._sendable: Any = None  # the weights, as they travel
        self._queue: deque[_Untaken] = deque()
        self._asked: dict[int, deque[_Asked]] = {}  # by runner, the oldest first
        self._to_repeat: dict[int, deque[_Asked]] = {}  # of a checkpoint, not sent again yet
        self._wanted: set[int] = set()  # runners that `ask` has not given everything yet
        self._generation = 0  # answers to what was asked before a `reset` are dropped
        self._begun: set[int] = set()  # runners that were asked for something

    def set_weights(self, weights: Any, version: int) -> None:
        """Weights for all requests from now on; they must not be changed in place."""
        self.weights, self.weights_version = weights, version
        if self._remote is not None:
            self._sendable = self._remote.sendable(weights)

    def take(self) -> Any:
        """The oldest reply; waits for it if none is there.

        Raises:
            EnvError: an environment failed, and would again.
            EnvRunnersError: nothing came in ``sample_timeout_s``, or failures that the
                fault-tolerance settings do not cover.
        """
        if self._remote is None:
            return self._sample_here()
        while self._remote.ended:
            index = self._remote.ended.pop()
            self._asked.pop(index, None)
            self._begun.discard(index)
        for index in self._remote.actors.actor_ids:
            if index not in self._begun:
                self._begun.add(index)
                self.ask(index)
        self.collect()
        while not self._queue:
            self.collect(timeout_s=self._remote.timeout_s)
        untaken = self._queue.popleft()
        self._remote.states.taken[untaken.runner_index] = untaken.state
        self._refill_all()
        return untaken.reply

    def ask(self, index: int) -> None:
        """Give a remote runner requests, as many as it may have; later while the queue is full."""
        if self._remote is not None:
            self._wanted.add(index)
            self._ask_replaced(index)
            self._fill(index)

    def reset(self) -> None:
        """Forget what was asked and what waits, as after a change of the runners' states."""
        self._queue.clear()
        self._asked.clear()
        self._to_repeat.clear()
        self._wanted.clear()
        self._generation += 1
        self._begun.clear()

    def get_state(self) -> dict[str, Any]:
        """Requests whose replies were not taken, their weights, and the present weights.

        The runners' states belong to it: `EnvRunnerGroup.get_states`.
        """
        indices = [] if self._remote is None else self._remote.actors.actor_ids
        under_way = {index: list(self._under_way(index)) for index in indices}
        weights = {
            asked.request.weights_version: asked.weights
            for of_runner in under_way.values()
            for asked in of_runner
        }
        return {
            "weights_version": self.weights_version,
            "weights": {**weights, self.weights_version: self.weights},
            "under_way": {
                index: [asked.request.get_state() for asked in of_runner]
                for index, of_runner in under_way.items()
            },
        }

    def set_state(
        self, state: Mapping[str, Any], request_of: Callable[[Mapping[str, Any]], SampleRequest]
    ) -> None:
        """Restore a state from `get_state`; replies to earlier requests are dropped.

        Args:
            request_of: makes a request of the values of `SampleRequest.get_state`.
        """
        self.reset()
        weights, version = state["weights"], int(state["weights_version"])
        self.set_weights(weights[version], version)
        for index, requests in state["under_way"].items():
            again = [request_of(request) for request in requests]
            self._to_repeat[index] = deque(
                _Asked(request, weights[request.weights_version]) for request in again
            )

    def _under_way(self, index: int) -> Iterator[_Asked]:
        """Requests to the runner since the last of its replies that was taken, in order."""
        yield from (untaken.asked for untaken in self._queue if untaken.runner_index == index)
        yield from self._asked.get(index, ())
        yield from self._to_repeat.get(index, ())

    def _sample_here(self) -> Any:
        request, runner = self._new_request(), self._group.local_env_runner
        if self._task is None:
            return runner.sample_fragment(request, self.weights)
        return self._task(runner, request, self.weights)

    def _send(self, index: int, asked: _Asked) -> None:
        assert self._remote is not None
        present = asked.weights is self.weights
        weights = self._sendable if present else self._remote.sendable(asked.weights)
        tag = (self._generation, asked.request.fragment)
        self._remote.send(index, asked.request, weights, tag=tag, task=self._task)

    def collect(self, timeout_s: float = 0.0) -> None:
        """Queue the replies that have come, and send their runners new requests.

        Args:
            timeout_s: wait so long for a first one.
        """
        if self._remote is None:
            return
        results = self._remote.actors.fetch_ready_async_reqs(timeout_s=timeout_s)
        by_runner: dict[int, list[CallResult]] = {}
        for result in results:
            asked = self._asked.get(result.actor_id, ())
            expected = [(self._generation, one.request.fragment) for one in asked]
            if result.actor_failed or result.tag in expected:
                by_runner.setdefault(result.actor_id, []).append(result)
        for index, of_runner in by_runner.items():
            self._accept(index, of_runner)
        for index in self._remote.late_ones():
            first = next((asked.request.fragment for asked in self._asked.get(index, ())), -1)
            self._go_on(index, self._remote.recover_late([index], first))
        self._refill_all()
        if not (results or self._queue or self._remote.actors.num_in_flight()):
            self._remote.fail_without_runners()

    def _accept(self, index: int, results: list[CallResult]) -> None:
        """Queue a runner's replies; the first failure voids its later requests."""
        assert self._remote is not None
        for result in results:
            if not result.ok:
                self._go_on(index, self._remote.recover([result], _fragment(result)))
                return
            asked = self._asked[index].popleft()
            reply = self._remote.received(result)
            state = self._remote.states.replied[index]
            self._queue.append(_Untaken(index, asked, reply, state))

    def _go_on(self, index: int, replaced: Sequence[int]) -> None:
        """Send a replaced runner all requests that its predecessor did not answer."""
        assert self._remote is not None
        if index not in replaced:
            lost = self._asked.pop(index, ())
            self._remote.fragments_lost(asked.request.length for asked in lost)
            return
        of_runner = self._asked.setdefault(index, deque())
        for i, asked in enumerate(of_runner):
            request = self._remote.with_connector_state(asked.request)
            of_runner[i] = replace(asked, request=request)
            self._send(index, of_runner[i])

    def _ask_replaced(self, index: int) -> None:
        """Repeat a runner's requests if it was replaced meanwhile, and has lost all of them."""
        assert self._remote is not None
        actors = self._remote.actors
        if self._asked.get(index) and not actors.num_in_flight(index):
            self._go_on(index, actors.healthy_actor_ids)

    def _refill_all(self) -> None:
        assert self._remote is not None
        for index in self._remote.actors.actor_ids:
            self._ask_replaced(index)
            if self._refill or index in self._wanted:
                self._fill(index)

    def _fill(self, index: int) -> None:
        assert self._remote is not None
        actors, limit = self._remote.actors, self._remote.max_in_flight
        if index not in actors.healthy_actor_ids:
            return
        asked = self._asked.setdefault(index, deque())
        while len(asked) < limit and len(self._queue) < self._queue_size:
            # Requests from before a `reset` still count for Ray, until they are answered.
            if actors.num_in_flight(index) >= limit:
                return
            asked.append(self._next(index))
            self._send(index, asked[-1])
        if len(asked) == limit:
            self._wanted.discard(index)

    def _next(self, index: int) -> _Asked:
        repeated = self._to_repeat.get(index)
        if repeated:
            return repeated.popleft()
        return _Asked(self._new_request(), self.weights)

    def _new_request(self) -> SampleRequest:
        return replace(self._next_request(), weights_version=self.weights_version)


class RoundAhead:
    """A synchronous round that runs while the rows of the round before it are learned from.

    It acts with the weights of before that learning, so its rows are one update older; equal runs
    stay equal, and a resumed run asks for the same round again. Runners have its requests before
    they have answered the earlier ones, and so need not wait for the driver.

    Args:
        group: remote runners, which must not be sampled from otherwise.
        next_request: makes the request for a round.
        request_of: see `AsynchronousSampler.set_state`.
    """

    def __init__(
        self,
        group: EnvRunnerGroup,
        next_request: Callable[[], SampleRequest],
        request_of: Callable[[Mapping[str, Any]], SampleRequest],
    ) -> None:
        self._group, self._next_request, self._request_of = group, next_request, request_of
        self._asked: _Asked | None = None
        self._lengths: list[int] = []
        self._round: Round | None = None

    def begin(self, lengths: Sequence[int], weights: Any) -> None:
        """Send the requests of the next round, unless `take` has done so, and go on.

        Args:
            lengths: steps of each sub-environment, by runner.
        """
        if self._round is None:
            self._begin(self._next_request(), lengths, weights)

    def _begin(self, request: SampleRequest, lengths: Sequence[int], weights: Any) -> None:
        begun = self._group.begin(request, lengths, weights)
        self._keep(begun, request, lengths, weights)

    def _keep(
        self, begun: Round, request: SampleRequest, lengths: Sequence[int], weights: Any
    ) -> None:
        self._round, self._asked, self._lengths = begun, _Asked(request, weights), list(lengths)

    def take(
        self, lengths: Sequence[int], following: Sequence[int] | None, weights: Any
    ) -> list[Any] | None:
        """Wait for the round's replies; None if there is none of these lengths.

        Args:
            following: lengths of the next round, which runners go on with at once; None if they
                are to wait for `begin`.
            weights: that the next round acts with.
        """
        if self._lengths != list(lengths):
            self.cancel()
        begun, self._round, self._asked = self._round, None, None
        if begun is None:
            return None
        if following is None:
            return begun.replies()
        begun.ask_replaced()  # before they have the next request
        request = self._next_request()
        behind = self._group.begin(request, following, weights, queued=True)
        replies = begun.replies()  # or an error, and both rounds are given up
        self._keep(behind, request, following, weights)
        behind.ask_replaced()
        return replies

    def cancel(self) -> None:
        """Have the runners as if no round had been asked for."""
        if self._round is not None:
            self._group.set_states(self._group.get_states())
        self._round = self._asked = None

    def get_state(self) -> dict[str, Any]:
        """The request under way, if there is one, and its weights."""
        if self._asked is None:
            return {}
        asked = self._asked
        request = asked.request.get_state()
        return {"request": request, "lengths": self._lengths, "weights": asked.weights}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Ask for the round of a state; for none if there is another number of runners."""
        self._round = self._asked = None
        if state and len(state["lengths"]) == len(self._group.indices):
            self._begin(self._request_of(state["request"]), state["lengths"], state["weights"])


def _fragment(result: CallResult) -> int:
    assert isinstance(result.tag, tuple)
    return int(result.tag[1])
