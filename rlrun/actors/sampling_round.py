"""One synchronous round over remote env runners: `SamplingRound`.

Owns who is asked, how long it is waited, and that a runner which was replaced is asked again; what
a failure leads to is `RunnerRecovery`'s. Knows nothing of batches.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ray

from rlrun.actors.runner_recovery import RunnerRecovery

if TYPE_CHECKING:
    from rlrun.actors.actor_manager import CallResult, FaultTolerantActorManager
    from rlrun.actors.env_runner_group import EnvRunnerGroup
    from rlrun.sampling.runner_messages import SampleReply, SampleRequest

_INLINE_BYTES = 64 * 1024  # Ray sends arguments of up to 100 kB within the call

_log = logging.getLogger(__name__)


class SamplingRound:
    """One synchronous round; keeps asking until each runner has answered, is late or is lost."""

    def __init__(
        self,
        group: EnvRunnerGroup,
        manager: FaultTolerantActorManager,
        request: SampleRequest,
        lengths: Sequence[int] | None,
        weights: Any,
    ) -> None:
        self._group, self._manager, self._request = group, manager, request
        self._lengths = lengths
        self._weights = sendable(weights)
        self._tag = ("sample", request.fragment)
        self._replies: dict[int, SampleReply] = {}
        self._recovery = RunnerRecovery(group, manager)
        self._timeout_s = group.spec.settings.sample_timeout_s

    def run(self) -> list[SampleReply]:
        """The replies, ordered by runner index."""
        self._discard_late_results()
        pending: set[int] = set()
        for index in self._manager.healthy_actor_ids:
            pending |= self._send(index)
        deadline = time.monotonic() + self._timeout_s
        while pending:
            left = deadline - time.monotonic()
            results = self._manager.fetch_ready_async_reqs(tags=[self._tag], timeout_s=max(0, left))
            if not results:
                break
            for result in results:
                pending.discard(result.actor_id)
                if result.ok:
                    self._accept(result)
                elif self._recovery.recover(result, self._request.fragment):
                    self._repeat_connector_state()
                    pending |= self._send(result.actor_id)
                    deadline = time.monotonic() + self._timeout_s
        if not self._replies:
            self._recovery.nothing_came(late=bool(pending or self._manager.num_in_flight()))
        elif pending:
            late = f"env runners {sorted(pending)} did not answer within {self._timeout_s:g} s"
            _log.warning("%s; their results will be discarded", late)
        return [self._replies[index] for index in sorted(self._replies)]

    def _discard_late_results(self) -> None:
        """Drop answers to earlier rounds, and replace runners that do not seem to come back."""
        self._manager.fetch_ready_async_reqs()
        if self._recovery.replace_hanging():
            self._repeat_connector_state()

    def _send(self, index: int) -> set[int]:
        """Ask a runner for its fragment, unless it is still busy with an earlier one."""
        request = self._request
        if self._lengths is not None:
            request = replace(request, length=self._lengths[index - 1])
        taken = self._manager.foreach_actor_async(
            "sample_fragment", request, self._weights, tag=self._tag, actor_ids=[index]
        )
        return set(taken)

    def _accept(self, result: CallResult) -> None:
        reply: SampleReply = result.value
        self._replies[result.actor_id] = reply
        self._group.states[result.actor_id] = reply.state
        self._group.taken_states[result.actor_id] = reply.state
        self._group.consecutive_failures = 0

    def _repeat_connector_state(self) -> None:
        """A new runner has never seen the merged statistics that the old one was sent once."""
        if self._request.connector_state is None and self._group.connector_state is not None:
            self._request = replace(self._request, connector_state=self._group.connector_state)


def sendable(weights: Any) -> Any:
    """Weights as they travel: small ones in the call, large ones through the object store, once.

    A small network's are at the runner a millisecond earlier than their place in the store.
    """
    buffers = weights.values() if isinstance(weights, Mapping) else [weights]
    if weights is None or sum(buffer.nbytes for buffer in buffers) <= _INLINE_BYTES:
        return weights
    return ray.put(weights)
