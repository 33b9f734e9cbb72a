"""One synchronous round over remote env runners: `SamplingRound`.

Owns who is asked, how long it is waited, and what a failure leads to: a restart and the same
request again, going on without the runner, or the end of the run. Knows nothing of batches.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ray

from rlrun.sampling.errors import EnvError
from rlrun.sampling.runner_errors import EnvRunnersError, death_of

if TYPE_CHECKING:
    from rlrun.sampling.actor_manager import CallResult, FaultTolerantActorManager
    from rlrun.sampling.env_runner_group import EnvRunnerGroup
    from rlrun.sampling.runner_messages import SampleReply, SampleRequest

_IDLE_S = 1.0  # pause before another try when no runner is left

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
        self._weights = None if weights is None else ray.put(weights)
        self._tag = ("sample", request.fragment)
        self._replies: dict[int, SampleReply] = {}
        self._tolerance = group.tolerance
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
                elif self._recover(result):
                    pending |= self._send(result.actor_id)
                    deadline = time.monotonic() + self._timeout_s
        if not self._replies:
            self._nothing_came(pending)
        elif pending:
            late = f"env runners {sorted(pending)} did not answer within {self._timeout_s:g} s"
            _log.warning("%s; their results will be discarded", late)
        return [self._replies[index] for index in sorted(self._replies)]

    def _discard_late_results(self) -> None:
        """Drop answers to earlier rounds, and replace runners that do not seem to come back."""
        self._manager.fetch_ready_async_reqs()
        patience_s = self._timeout_s + self._tolerance.env_runner_health_probe_timeout_s
        for index in self._manager.healthy_actor_ids:
            if self._manager.oldest_call_s(index) > patience_s:
                _log.warning("env runner %d hangs", index)
                self._manager.set_unhealthy(index)
                if self._tolerance.restart_failed_env_runners:
                    self._restart(index)

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
        self._group.consecutive_failures = 0

    def _recover(self, result: CallResult) -> bool:
        """Whether the runner was replaced, and can be asked again; raises if the run must end."""
        index, tolerance, group = result.actor_id, self._tolerance, self._group
        assert result.error is not None
        group.consecutive_failures += 1
        limit = tolerance.num_consecutive_env_runner_failures_tolerance
        tolerated = group.consecutive_failures <= limit and not self._happened_before(result)
        if tolerance.restart_failed_env_runners and tolerated:
            if self._manager.can_restart(index):
                _log.warning("env runner %d is restarted: %s", index, _first_line(result))
                self._restart(index)
                return True
        elif tolerance.ignore_env_runner_failures and tolerated:
            _log.warning("env runner %d is lost: %s", index, _first_line(result))
            self._manager.set_unhealthy(index)
            return False
        if result.actor_failed:
            raise EnvRunnersError(death_of(result)) from None
        raise result.error from None

    def _happened_before(self, result: CallResult) -> bool:
        """Whether it is no accident: the same place failed before, or it is not the environment."""
        error = result.error
        if not isinstance(error, EnvError):
            return not result.actor_failed
        what = (self._request.fragment, error.phase, error.lane, error.env_step)
        before = self._group.last_env_errors.get(result.actor_id)
        self._group.last_env_errors[result.actor_id] = what
        return before == what

    def _restart(self, index: int) -> None:
        self._group.restart(index)
        # The new runner has never seen the merged statistics that the old one was sent once.
        if self._request.connector_state is None and self._group.connector_state is not None:
            self._request = replace(self._request, connector_state=self._group.connector_state)

    def _nothing_came(self, pending: set[int]) -> None:
        """No data: the run ends if all are late, and after the tolerated tries if all are lost."""
        if pending or self._manager.num_in_flight():
            said = {i: self._group.last_error_line(i) for i in self._manager.healthy_actor_ids}
            lines = [
                f"  env runner {index}: {line or 'nothing on stderr'}"
                for index, line in said.items()
            ]
            raise EnvRunnersError(
                f"no env runner answered within env_runners.sample_timeout_s={self._timeout_s:g}\n"
                + "\n".join(lines)
            )
        self._group.consecutive_failures += 1
        limit = self._tolerance.num_consecutive_env_runner_failures_tolerance
        if self._group.consecutive_failures > limit:
            raise EnvRunnersError(f"no env runner is left, after {limit} tries")
        time.sleep(_IDLE_S)


def _first_line(result: CallResult) -> str:
    return "its process died" if result.actor_failed else str(result.error).splitlines()[-1]
