"""Env runners as Ray actors: `RemoteRunners`, and what a group and its samplers share of them.

Owns the actors' start, where each runner stands, and what a failure leads to: a restart with the
state of the runner's last reply, going on without it, or the end of the run, as `fault_tolerance`
says. Must not know which fragments are asked for, nor what is done with replies. Imports Ray.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import ray

from rlrun.actors.actor_manager import CallResult, FaultTolerantActorManager
from rlrun.actors.ray_runtime import last_error_line
from rlrun.config import registry
from rlrun.config.schema import FaultToleranceConfig
from rlrun.envs.errors import EnvError
from rlrun.sampling.runner_messages import RunnerSpec, SampleReply, SampleRequest

Task = Callable[[Any, Any, Any], Any]
"""``(runner, request, weights) -> reply``: what a runner does; the reply has a ``state``."""

RunnerFactory = Callable[..., Any]
"""Makes a runner; called as `EnvRunner` is, in the actor's process."""

_SCHEDULING_TIMEOUT_S = 60.0  # for Ray to find a place for an actor and start its process
_IDLE_S = 1.0  # pause before another try when no runner is left
_INLINE_BYTES = 64 * 1024  # Ray sends arguments of up to 100 kB within the call

_log = logging.getLogger(__name__)


class EnvRunnersError(RuntimeError):
    """Env runners failed in a way that the fault-tolerance settings do not cover."""


class _RunnerDiedError(EnvRunnersError):
    """The process of a runner ended."""


@dataclass
class RunnerStates:
    """Where each remote runner stands, and which failures there were; by runner index."""

    replied: dict[int, dict[str, Any]] = field(default_factory=dict)
    """State after the last reply: a replaced runner goes on from there."""
    taken: dict[int, dict[str, Any]] = field(default_factory=dict)
    """State after the last reply that learning has taken: a resumed run goes on from there."""
    connector_state: dict[str, Any] | None = None
    """Merged connector statistics that were sent last."""
    consecutive_failures: int = 0
    env_errors: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    """The last error of a runner's environment: fragment, phase and place."""

    def reply_came(self, index: int, state: dict[str, Any], *, taken: bool) -> None:
        """A runner has answered; ``taken`` if learning has the reply at once."""
        self.replied[index] = state
        if taken:
            self.taken[index] = state
        self.consecutive_failures = 0

    def failed_before(self, index: int, fragment: int, error: EnvError) -> bool:
        """Note an error of an environment; whether the last one was in the same place."""
        place = (fragment, error.phase, error.env_index, error.env_step)
        before = self.env_errors.get(index)
        self.env_errors[index] = place
        return before == place


class RemoteRunners:
    """Env runners 1, 2, ... as actors; the built ones answer, those that fail are replaced.

    Args:
        make_runner: importable in the actors' processes.
        number: how many.
        arguments: ``(index, recreated) -> keyword arguments`` of `make_runner` beside the spec.

    Attributes:
        states: where each runner stands.
        actors: the runners' actors.
    """

    def __init__(
        self,
        make_runner: RunnerFactory,
        spec: RunnerSpec,
        number: int,
        tolerance: FaultToleranceConfig,
        arguments: Callable[[int, bool], Mapping[str, Any]],
    ) -> None:
        self._spec, self._tolerance = spec, tolerance
        self.states = RunnerStates()
        self._process_ids: dict[int, int] = {}
        settings = spec.settings
        self.timeout_s = settings.sample_timeout_s
        self.max_in_flight = settings.max_requests_in_flight_per_env_runner
        host_class: Any = ray.remote(
            num_cpus=settings.num_cpus_per_env_runner,
            num_gpus=settings.num_gpus_per_env_runner,
            resources={k: float(v) for k, v in settings.custom_resources_per_env_runner.items()},
            max_restarts=0,  # restarts are ours: they restore a state
        )(_RunnerHost)
        creator = registry.ENVS.get(spec.env.use)
        creators = {} if creator is None else {spec.env.use: creator}

        def make_actor(index: int, recreated: bool) -> Any:
            host = host_class.remote()
            host.build.remote(make_runner, spec, arguments(index, recreated), creators)
            return host

        self.actors = FaultTolerantActorManager(
            make_actor,
            number,
            max_in_flight=self.max_in_flight,
            max_restarts=tolerance.max_num_env_runner_restarts,
            restart_delay_s=tolerance.delay_between_env_runner_restarts_s,
        )

    def wait_until_built(self) -> None:
        """Wait for the runners' constructors; see `EnvRunnerGroup.wait_until_built`."""
        self._require_scheduled(self.actors.actor_ids)
        if self._spec.settings.validate_env_runners_after_construction:
            self._require_answers(self.actors.actor_ids)

    # -- requests ------------------------------------------------------------------------------

    def send(
        self, index: int, request: SampleRequest, weights: Any, *, tag: Any, task: Task | None
    ) -> bool:
        """Ask a runner for a fragment, or for a task; whether it had room for the request."""
        if request.connector_state is not None:
            self.states.connector_state = request.connector_state
        method, first = ("sample_fragment", ()) if task is None else ("apply", (task,))
        return bool(
            self.actors.foreach_actor_async(
                method, *first, request, weights, tag=tag, actor_ids=[index]
            )
        )

    @staticmethod
    def sendable(weights: Any) -> Any:
        """Weights as they travel: small ones in the call, large ones in the object store, once.

        A small network's are at the runner a millisecond earlier than their place in the store.
        """
        buffers = weights.values() if isinstance(weights, Mapping) else [weights]
        if weights is None or sum(buffer.nbytes for buffer in buffers) <= _INLINE_BYTES:
            return weights
        return ray.put(weights)

    def with_connector_state(self, request: SampleRequest) -> SampleRequest:
        """The request as a replaced runner needs it, which has not been sent the statistics."""
        if request.connector_state is not None or self.states.connector_state is None:
            return request
        return replace(request, connector_state=self.states.connector_state)

    # -- failures ------------------------------------------------------------------------------

    def recover(self, result: CallResult, fragment: int) -> bool:
        """Whether the runner was replaced, and can be asked for the fragment again.

        Raises:
            EnvError: the environment failed in the same place before, or restarts are not wanted.
            EnvRunnersError: the runner's process died, and nothing covers that.
        """
        index, tolerance, states = result.actor_id, self._tolerance, self.states
        error = result.error
        assert error is not None
        states.consecutive_failures += 1
        limit = tolerance.num_consecutive_env_runner_failures_tolerance
        if isinstance(error, EnvError):
            accident = not states.failed_before(index, fragment, error)
        else:
            accident = result.actor_failed  # anything else is a bug, which would come back
        tolerated = accident and states.consecutive_failures <= limit
        what = "its process died" if result.actor_failed else str(error).splitlines()[-1]
        if tolerance.restart_failed_env_runners and tolerated:
            if self.actors.can_restart(index):
                _log.warning("env runner %d is restarted: %s", index, what)
                self._restart(index)
                return True
        elif tolerance.ignore_env_runner_failures and tolerated:
            _log.warning("env runner %d is lost: %s", index, what)
            self.actors.set_unhealthy(index)
            return False
        if result.actor_failed:
            raise EnvRunnersError(_death_of(result)) from None
        raise error from None

    def replace_hanging(self) -> list[int]:
        """Replace runners that do not seem to come back; indices that can be asked again.

        Fetch results before: a finished call that was not fetched looks like a hanging one.
        """
        replaced = []
        patience_s = self.timeout_s + self._tolerance.env_runner_health_probe_timeout_s
        for index in self.actors.healthy_actor_ids:
            if self.actors.oldest_call_s(index) > patience_s:
                _log.warning("env runner %d hangs", index)
                self.actors.set_unhealthy(index)
                if self._tolerance.restart_failed_env_runners:
                    self._restart(index)
                    replaced.append(index)
        return replaced

    def nothing_came(self, *, late: bool) -> None:
        """Raise EnvRunnersError if all runners are late, or lost in more tries than tolerated."""
        if late:
            pids = {i: self._process_ids.get(i) for i in self.actors.healthy_actor_ids}
            lines = [
                f"  env runner {index}: {(pid and last_error_line(pid)) or 'nothing on stderr'}"
                for index, pid in pids.items()
            ]
            raise EnvRunnersError(
                f"no env runner answered within env_runners.sample_timeout_s={self.timeout_s:g}\n"
                + "\n".join(lines)
            )
        self.states.consecutive_failures += 1
        limit = self._tolerance.num_consecutive_env_runner_failures_tolerance
        if self.states.consecutive_failures > limit:
            raise EnvRunnersError(f"no env runner is left, after {limit} tries")
        time.sleep(_IDLE_S)

    def _restart(self, index: int) -> None:
        """Replace a runner by one with the same index and the state of the last reply.

        Raises:
            EnvError: the environment cannot be built again.
            EnvRunnersError: no restart is left.
        """
        while True:
            if not self.actors.can_restart(index):
                limit = self._tolerance.max_num_env_runner_restarts
                raise EnvRunnersError(f"env runner {index} died after {limit} restarts")
            self.actors.restart(index)
            try:
                self._require_scheduled([index])
                self._require_answers([index])
                if index in self.states.replied:
                    self._restore(index)
            except _RunnerDiedError:
                continue
            return

    # -- states --------------------------------------------------------------------------------

    def get_states(self) -> dict[int, dict[str, Any] | None]:
        """See `EnvRunnerGroup.get_states`."""
        return {index: self.states.taken.get(index) for index in self.actors.actor_ids}

    def set_states(self, states: Mapping[int, dict[str, Any] | None]) -> None:
        """Have each runner go on from its state; without one, as it was built."""
        own = {index: states.get(index) for index in self.actors.actor_ids}
        self.states.replied = {index: state for index, state in own.items() if state is not None}
        self.states.taken = dict(self.states.replied)
        for index in self.actors.healthy_actor_ids:
            self._restore(index)

    def _restore(self, index: int) -> None:
        self._require("set_state", self.states.replied.get(index), indices=[index], done="restored")

    def foreach(self, function: Callable[[Any], Any]) -> list[Any]:
        """``function(runner)`` of all healthy runners; raises the first exception of a call."""
        results = self.actors.foreach_actor("apply", function)
        for result in results:
            if result.error is not None and not result.actor_failed:
                raise result.error
        return [result.value for result in results if result.ok]

    def stop(self) -> None:
        """Close all environments and end the actors."""
        if self.actors.num_in_flight() == 0:
            self.actors.foreach_actor("stop", timeout_s=2.0)
        self.actors.stop()

    # -- calls that must be answered -----------------------------------------------------------

    def _require_scheduled(self, indices: list[int]) -> None:
        """Wait until Ray has started the processes; a pending actor is an error, not a hang."""
        results = self.actors.foreach_actor(
            "process_id", actor_ids=indices, timeout_s=_SCHEDULING_TIMEOUT_S
        )
        if len(results) < len(indices):
            free = ray.available_resources()  # type: ignore[no-untyped-call]
            settings = self._spec.settings
            raise EnvRunnersError(
                f"{len(indices) - len(results)} of {len(indices)} env runners could not be started "
                f"within {_SCHEDULING_TIMEOUT_S:.0f} s. Each needs "
                f"{settings.num_cpus_per_env_runner:g} CPUs and "
                f"{settings.num_gpus_per_env_runner:g} GPUs; free are {free.get('CPU', 0):g} CPUs "
                f"and {free.get('GPU', 0):g} GPUs"
            )
        _raise_unless_ok(results, indices, "started")
        self._process_ids.update({result.actor_id: result.value for result in results})

    def _require_answers(self, indices: list[int]) -> None:
        self._require("ping", indices=indices, done="built")

    def _require(self, method: str, *arguments: Any, indices: list[int], done: str) -> None:
        timeout_s = self._tolerance.env_runner_restore_timeout_s
        results = self.actors.foreach_actor(
            method, *arguments, actor_ids=indices, timeout_s=timeout_s
        )
        _raise_unless_ok(results, indices, done)


class _RunnerHost:
    """The actor: builds a runner, and passes calls on to it.

    The runner is built by a call, not by the actor's constructor, so that an exception of its
    constructor reaches the driver as it is.
    """

    def __init__(self) -> None:
        self._make: Callable[[], Any]
        self._runner: Any = None
        self._failure: Exception | None = None

    def process_id(self) -> int:
        """Answers as soon as the process runs, before the runner is built."""
        return os.getpid()

    def build(
        self,
        make_runner: RunnerFactory,
        spec: RunnerSpec,
        arguments: Mapping[str, Any],
        env_creators: Mapping[str, Callable[..., Any]],
    ) -> None:
        """Build the runner; an exception of its constructor is raised by the first call to it.

        Args:
            env_creators: environments registered by name in the driver, to be known here too.
        """
        registry.ENVS.update(env_creators)
        self._make = partial(make_runner, spec, **arguments)
        try:
            self._runner = self._make()
        except Exception as error:
            self._failure = error

    def ping(self) -> Any:
        """Answer a health probe."""
        return self._built().ping()

    def sample_fragment(self, request: SampleRequest, weights: Any) -> SampleReply:
        """See `EnvRunner.sample_fragment`."""
        reply: SampleReply = self._built().sample_fragment(request, weights)
        return reply

    def set_state(self, state: dict[str, Any] | None) -> None:
        """See `EnvRunner.set_state`; None is the state in which a runner is built."""
        if state is None:
            self._built().stop()
            self._runner = self._make()
        else:
            self._built().set_state(state)

    def apply(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """``function(runner, *arguments)``."""
        return function(self._built(), *arguments)

    def stop(self) -> None:
        """Close the environments."""
        if self._runner is not None:
            self._runner.stop()

    def _built(self) -> Any:
        if self._failure is not None:
            raise self._failure
        return self._runner


def _raise_unless_ok(results: list[CallResult], indices: list[int], done: str) -> None:
    for result in results:
        if result.error is not None and not result.actor_failed:
            raise result.error
        if result.error is not None:
            raise _RunnerDiedError(_death_of(result)) from None
    if len(results) < len(indices):
        missing = sorted(set(indices) - {result.actor_id for result in results})
        raise EnvRunnersError(f"env runners {missing} could not be {done} in time")


def _death_of(result: CallResult) -> str:
    """One line out of Ray's twenty."""
    text = " ".join(str(result.error).split())
    cause = text.rpartition("Worker exit detail: ")[2]
    return f"env runner {result.actor_id} died: {cause}"
