"""`AsynchronousSampler`: env runners go on sampling while somebody learns from what they sent.

Owns what has been asked of which runner and not been answered, and the replies that wait to be
taken. Everything is bounded: a runner has at most `max_requests_in_flight_per_env_runner` requests,
and gets no further one while ``queue_size`` replies wait; so a learner that is slow makes the
runners wait, and memory does not grow. Knows nothing of learning.

There is no thread. Runners are processes of their own, so sampling and learning overlap as long as
requests are under way when the driver turns to learning; each `take` sends new ones before it
returns. What cannot be promised with remote runners is which reply comes first, and so equal runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlrun.sampling.runner_recovery import RunnerRecovery

if TYPE_CHECKING:
    from rlrun.sampling.actor_manager import CallResult
    from rlrun.sampling.env_runner_group import EnvRunnerGroup
    from rlrun.sampling.runner_messages import SampleRequest

Task = Callable[[Any, Any, Any], Any]
"""``(runner, request, weights) -> reply``: what a runner does; the reply has a ``state``."""


class AsynchronousSampler:
    """Streams replies of a group's runners, the oldest first; in this process if it has no others.

    While one is in use, nobody else samples from the group.

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
        self._manager = group.manager
        self._recovery = None if self._manager is None else RunnerRecovery(group, self._manager)
        self._timeout_s = group.spec.settings.sample_timeout_s
        self._weights: Any = None  # an object reference if the runners are remote
        self.weights_version = -1
        self._queue: deque[Any] = deque()
        self._asked: dict[int, deque[SampleRequest]] = {}  # by runner, the oldest first
        self._wanted: set[int] = set()  # runners that `ask` has not given everything yet
        self._generation = 0  # answers to what was asked before a `reset` are dropped
        self._started = False

    @property
    def num_waiting(self) -> int:
        """Replies that have come and were not taken."""
        return len(self._queue)

    def set_weights(self, weights: Any, version: int) -> None:
        """What runners act with from their next request on."""
        self._weights = weights
        if self._manager is not None:
            from rlrun.sampling.sampling_round import sendable

            self._weights = sendable(weights)
        self.weights_version = version

    def take(self) -> Any:
        """The oldest reply; waits for it if none is there.

        Raises:
            EnvError: an environment failed, and would again.
            EnvRunnersError: nothing came in ``sample_timeout_s``, or failures that the
                fault-tolerance settings do not cover.
        """
        if self._manager is None:
            return self._sample_here()
        if not self._started:
            self._started = True
            for index in self._manager.actor_ids:
                self.ask(index)
        self._collect(timeout_s=0.0)
        while not self._queue:
            self._collect(timeout_s=self._timeout_s)
        reply = self._queue.popleft()
        self._refill_all()
        return reply

    def ask(self, index: int) -> None:
        """Give a remote runner requests, as many as it may have; later while the queue is full."""
        if self._manager is not None:
            self._wanted.add(index)
            self._fill(index)

    def reset(self) -> None:
        """Forget what was asked and what waits, as after a change of the runners' states."""
        self._queue.clear()
        self._asked.clear()
        self._wanted.clear()
        self._generation += 1
        self._started = False

    def _sample_here(self) -> Any:
        request = replace(self._next_request(), weights_version=self.weights_version)
        runner = self._group.local_env_runner
        if self._task is None:
            return runner.sample_fragment(request, self._weights)
        return self._task(runner, request, self._weights)

    def _send(self, index: int, request: SampleRequest) -> None:
        assert self._manager is not None
        if request.connector_state is not None:
            self._group.connector_state = request.connector_state
        method = "sample_fragment" if self._task is None else "apply"
        task = () if self._task is None else (self._task,)
        tag = (self._generation, request.fragment)
        self._manager.foreach_actor_async(
            method, *task, request, self._weights, tag=tag, actor_ids=[index]
        )

    def _collect(self, timeout_s: float) -> None:
        """Queue the replies that have come, or that come first, and let their runners go on."""
        assert self._manager is not None
        assert self._recovery is not None
        results = self._manager.fetch_ready_async_reqs(timeout_s=timeout_s)
        by_runner: dict[int, list[CallResult]] = {}
        for result in results:
            if self._is_expected(result):
                by_runner.setdefault(result.actor_id, []).append(result)
        for index, of_runner in by_runner.items():
            self._accept(index, sorted(of_runner, key=_fragment))
        for index in self._recovery.replace_hanging():
            self._ask_again(index)
        self._refill_all()
        if timeout_s and not self._queue and not results:
            self._recovery.nothing_came(late=self._manager.num_in_flight() > 0)

    def _is_expected(self, result: CallResult) -> bool:
        asked = [request.fragment for request in self._asked.get(result.actor_id, ())]
        return result.tag in [(self._generation, fragment) for fragment in asked]

    def _accept(self, index: int, results: list[CallResult]) -> None:
        """Queue a runner's replies; the first failure voids what it was asked after that."""
        assert self._recovery is not None
        for result in results:
            if not result.ok:
                if self._recovery.recover(result, _fragment(result)):
                    self._ask_again(index)
                else:
                    self._asked.pop(index)
                return
            self._asked[index].popleft()
            self._group.states[index] = result.value.state
            self._group.consecutive_failures = 0
            self._queue.append(result.value)

    def _ask_again(self, index: int) -> None:
        """Send a replaced runner everything that its predecessor did not answer."""
        requests = self._asked.setdefault(index, deque())
        # It has never seen the merged statistics that the old one was sent once.
        known = self._group.connector_state
        for i, request in enumerate(requests):
            if request.connector_state is None:
                requests[i] = replace(request, connector_state=known)
            self._send(index, replace(requests[i], weights_version=self.weights_version))

    def _refill_all(self) -> None:
        assert self._manager is not None
        for index in self._manager.healthy_actor_ids:
            if self._refill or index in self._wanted:
                self._fill(index)

    def _fill(self, index: int) -> None:
        assert self._manager is not None
        if index not in self._manager.healthy_actor_ids:
            return
        limit = self._group.spec.settings.max_requests_in_flight_per_env_runner
        asked = self._asked.setdefault(index, deque())
        while len(asked) < limit and len(self._queue) < self._queue_size:
            # What it was asked before a `reset` still counts for Ray, until it is done.
            if self._manager.num_in_flight(index) >= limit:
                return
            request = replace(self._next_request(), weights_version=self.weights_version)
            asked.append(request)
            self._send(index, request)
        if len(asked) == limit:
            self._wanted.discard(index)


def _fragment(result: CallResult) -> int:
    assert isinstance(result.tag, tuple)
    return int(result.tag[1])
