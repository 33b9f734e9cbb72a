"""Env runners as Ray actors: `RemoteRunners`, which a group and its samplers share.

Owns the actors' start, the state of each runner, and the consequence of a failure: a restart in the
state of the runner's last reply, going on without it, or the end of the run, as `fault_tolerance`
says. Must not know which fragments are requested, nor what is done with replies. Imports Ray.

The call that finds a runner dead replaces it at once. Requests that were under way to it are lost:
their sender finds none in flight to the runner, and sends them again.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import ray

from rlrun.actors.actor_manager import CallResult, FaultTolerantActorManager
from rlrun.actors.ray_runtime import last_error_line, node_resources, python_stacks
from rlrun.actors.runner_host import (
    INLINE_BYTES,
    INTERRUPT_SIGNAL,
    RunnerFactory,
    RunnerHost,
    pack,
    unpack,
)
from rlrun.config.problems import InputError
from rlrun.config.schema import FaultToleranceConfig
from rlrun.data.seeding import Role
from rlrun.envs.errors import EnvError
from rlrun.sampling.runner_messages import RunnerSpec, SampleRequest

Task = Callable[[Any, Any, Any], Any]
"""``(runner, request, weights) -> reply``: what a runner does."""

_OF_NO_FRAGMENT = -1  # where a runner fails while it is restored, or in a call of all runners

_log = logging.getLogger(__name__)


class EnvRunnersError(RuntimeError):
    """Env runners failed in a way that the fault-tolerance settings do not cover."""

    exit_code = 1


@dataclass
class RunnerStates:
    """The states and failures of remote runners, by runner index."""

    replied: dict[int, bytes | None] = field(default_factory=dict)
    """State after the last reply, packed; a replaced runner continues from it."""
    taken: dict[int, bytes | None] = field(default_factory=dict)
    """State after the last reply that was taken to learn from; a resumed run continues from it."""
    connector_state: dict[str, Any] | None = None
    """Merged connector statistics that were sent last."""
    consecutive_failures: int = 0
    env_errors: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    """The last error of a runner's environment: fragment, phase and place."""
    late_with: dict[int, int] = field(default_factory=dict)
    """The last fragment that a runner did not return in time."""
    restarts: Counter[str] = field(default_factory=Counter)
    """Restarts by cause: its process ``died``, an ``env_error``, it was ``late``."""
    dropped_env_steps: int = 0
    """Env steps that were requested from runners that are lost."""

    def failed_before(self, index: int, fragment: int, error: EnvError) -> bool:
        """Note an error of an environment; return whether the last one was in the same place."""
        place = (fragment, error.phase, error.env_index, error.env_step)
        before = self.env_errors.get(index)
        self.env_errors[index] = place
        return before == place


class RemoteRunners:
    """Env runners 1, 2, ... as actors; those that fail are replaced.

    Args:
        make_runner: importable in the actors' processes.
        number: number of env runners.
        arguments: ``(index, recreated) -> keyword arguments`` of `make_runner` besides the spec.
        role: training or evaluation, for messages.

    Attributes:
        states: states and failures of the runners.
        actors: the runners' actors.
        ended: runners that `resize` has ended or restarted, until an `AsynchronousSampler` drops
            its requests to them.
    """

    def __init__(
        self,
        make_runner: RunnerFactory,
        spec: RunnerSpec,
        number: int,
        tolerance: FaultToleranceConfig,
        arguments: Callable[[int, bool], Mapping[str, Any]],
        role: Role,
    ) -> None:
        _require_sendable(spec)
        self._spec, self._tolerance = spec, tolerance
        evaluates = role is Role.EVALUATION
        self._kind = "evaluation env runner" if evaluates else "env runner"
        self._section = "evaluation.env_runners" if evaluates else "env_runners"
        self.states = RunnerStates()
        self.ended: set[int] = set()
        self._process_ids: dict[int, int | None] = {}  # None on another node
        self._interrupted = False
        self._warned: set[str] = set()  # warnings, which several runners may have
        self._packed: tuple[SampleRequest | None, bytes] = None, b""
        self._synced: Any = None  # the weights of `sync_weights`
        settings = spec.settings
        self.timeout_s = settings.sample_timeout_s
        self.max_in_flight = settings.max_requests_in_flight_per_env_runner
        if settings.sample_async:  # a round, and the one that follows it
            self.max_in_flight = max(self.max_in_flight, 2)
        host_class: Any = ray.remote(
            num_cpus=settings.cpus_per_env_runner,
            num_gpus=settings.num_gpus_per_env_runner,
            resources={k: float(v) for k, v in settings.custom_resources_per_env_runner.items()},
            max_restarts=0,  # restarts are ours: they restore a state
        )(RunnerHost)

        def make_actor(index: int, recreated: bool) -> Any:
            host = host_class.remote()
            host.build.remote(make_runner, spec.of_actors(), arguments(index, recreated))
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
        self._raise_unless_ok(self._scheduled(self.actors.actor_ids))
        if self._spec.settings.validate_env_runners_after_construction:
            self._raise_unless_ok(self._answers(dict.fromkeys(self.actors.actor_ids, ("ping",))))

    def resize(self, number: int) -> None:
        """See `EnvRunnerGroup.resize`."""
        for index in self.actors.actor_ids[number:]:
            self.actors.remove_actor(index)
            self.ended.add(index)
        healthy = self.actors.healthy_actor_ids
        lost = [index for index in self.actors.actor_ids if index not in healthy]
        self.ended.update(lost)
        added = [self.actors.add_actor() for _ in range(number - len(self.actors.actor_ids))]
        try:
            self._restart(lost)
            self._raise_unless_ok(self._started_and_restored(added))
        except BaseException:
            for index in added:
                self.actors.remove_actor(index)
            for index in lost:
                self.actors.set_unhealthy(index)
            raise

    def send(
        self, index: int, request: SampleRequest, weights: Any, *, tag: Any, task: Task | None
    ) -> bool:
        """Send a runner a request for a fragment or a task; return whether it had room for it."""
        if request.connector_state is not None:
            self.states.connector_state = request.connector_state
        method, first = ("sample_fragment", ()) if task is None else ("apply", (task,))
        return bool(
            self.actors.foreach_actor_async(
                method, *first, self._pack(request), weights, tag=tag, actor_ids=[index]
            )
        )

    def _pack(self, request: SampleRequest) -> bytes:
        """The request, pickled once for all runners that get the same one."""
        if request is not self._packed[0]:
            self._packed = request, pack(request)
        return self._packed[1]

    def received(self, result: CallResult) -> Any:
        """The reply of a call that returned; logs the warnings that came with it."""
        packed, large, state, warnings = result.value
        for warning in warnings:
            if warning not in self._warned:
                _log.warning("%s", warning)
            self._warned.add(warning)
        self.states.replied[result.actor_id] = state
        self.states.consecutive_failures = 0
        return unpack(packed, large)

    @staticmethod
    def sendable(weights: Any) -> Any:
        """Weights in the form that is sent: pickled bytes if they are small, else in the store.

        The bytes of a small network reach a runner a millisecond earlier than a reference would.
        """
        return pack(weights) if _num_bytes(weights) <= INLINE_BYTES else ray.put(weights)

    def with_connector_state(self, request: SampleRequest) -> SampleRequest:
        """The request with connector statistics, which a replaced runner has not received."""
        if request.connector_state is not None or self.states.connector_state is None:
            return request
        return replace(request, connector_state=self.states.connector_state)

    def recover(self, failures: Sequence[CallResult], fragment: int) -> list[int]:
        """Replace the runners whose calls have failed; returns those that can be asked again.

        Args:
            failures: failed requests for one fragment.

        Raises:
            EnvError: the environment failed in the same place before, or restarts are switched off,
                or no runner is left.
            EnvRunnersError: the runner's process died, and the settings do not allow a restart.
            KeyboardInterrupt: see `interrupt`.
        """
        self._end_if_interrupted()
        again, tolerance = [], self._tolerance
        for result in failures:
            index, tolerated = result.actor_id, self._is_tolerated(result, fragment)
            what = _in_one_line(result)
            if tolerated and tolerance.restart_failed_env_runners:
                if self.actors.can_restart(index):
                    _log.warning("%s %d is restarted: %s", self._kind, index, what)
                    self.states.restarts[_cause(result)] += 1
                    again.append(index)
                    continue
            elif (
                tolerated
                and tolerance.ignore_env_runner_failures
                and self._left_without(index, what)
            ):
                continue
            raise self._failure(result) from None
        self._restart(again)
        return again

    def _recover_dead(self, results: Iterable[CallResult]) -> list[int]:
        """Replace the runners that calls found dead; returns those that can be asked again."""
        dead = [result for result in results if result.actor_failed]
        return self.recover(dead, _OF_NO_FRAGMENT) if dead else []

    def _end_if_interrupted(self) -> None:
        if self._interrupted:
            raise KeyboardInterrupt

    def _is_tolerated(self, result: CallResult, fragment: int) -> bool:
        """Count a failure; returns whether it may be an accident, and few occurred in a row."""
        self.states.consecutive_failures += 1
        if isinstance(result.error, EnvError):
            accident = not self.states.failed_before(result.actor_id, fragment, result.error)
        else:
            accident = result.actor_failed  # anything else is a bug, which would occur again
        limit = self._tolerance.num_consecutive_env_runner_failures_tolerance
        return accident and self.states.consecutive_failures <= limit

    def _left_without(self, index: int, why: str) -> bool:
        """Leave a runner out; returns whether any are left."""
        self.actors.set_unhealthy(index)
        left, all_of_them = len(self.actors.healthy_actor_ids), len(self.actors.actor_ids)
        share = f"{left} of {all_of_them} sample from now on"
        _log.warning("%s %d is lost: %s; %s", self._kind, index, why, share)
        return left > 0

    def recover_late(self, indices: Sequence[int], fragment: int) -> list[int]:
        """Replace runners that did not answer in time; returns those that can be asked again.

        A fragment does not depend on how long it takes, so the replacement samples the same one. A
        runner that is late with the same fragment again would be late forever.

        Raises:
            EnvRunnersError: a runner is late again, restarts are switched off or used up, or no
                runner is left.
        """
        self._end_if_interrupted()
        states, tolerance = self.states, self._tolerance
        late = f"no answer within {self._section}.sample_timeout_s={self.timeout_s:g}"
        ignored = not tolerance.restart_failed_env_runners and tolerance.ignore_env_runner_failures
        if ignored and all(self._left_without(index, late) for index in indices):
            return []
        lost = [
            index
            for index in indices
            if states.late_with.get(index) == fragment or not self.actors.can_restart(index)
        ]
        if lost or not tolerance.restart_failed_env_runners:
            raise EnvRunnersError(self._silence(lost or indices, late))
        stacks = self._stacks(indices)
        for index in indices:
            states.late_with[index] = fragment
            was_in = f"; it was in\n{stacks[index]}" if index in stacks else ""
            _log.warning("%s %d is restarted: %s%s", self._kind, index, late, was_in)
        states.restarts["late"] += len(indices)
        self._restart(indices)
        return list(indices)

    def _silence(self, indices: Sequence[int], late: str) -> str:
        """The stacks of runners that do not answer, or the last lines of their stderr, as text."""
        stacks, said = self._stacks(indices), []
        for index in indices:
            pid = self._process_ids[index]
            doing = stacks.get(index) or (pid and last_error_line(pid)) or "nothing on stderr"
            said.append(f"  {self._kind} {index}: {doing}")
        return "\n".join([late, *said])

    def _stacks(self, indices: Sequence[int]) -> dict[int, str]:
        """The Python stacks of runners on this node, by runner, of processes that answer."""
        here = {pid: i for i in indices if (pid := self._process_ids[i]) is not None}
        return {here[pid]: stack for pid, stack in python_stacks(here).items()}

    def late_ones(self) -> list[int]:
        """Runners that have exceeded the time for all requests that may be in flight.

        Fetch results first: a finished call that was not fetched looks like a late one.
        """
        patience_s = self.timeout_s * self.max_in_flight
        healthy = self.actors.healthy_actor_ids
        return [index for index in healthy if self.actors.oldest_call_s(index) > patience_s]

    def fragments_lost(self, lengths: Iterable[int]) -> None:
        """Count fragments, of these lengths in vector steps, that are lost with their runners."""
        self.states.dropped_env_steps += sum(lengths) * self._spec.settings.num_envs_per_env_runner

    def fail_without_runners(self) -> None:
        """Raise EnvRunnersError, as no runner is left."""
        raise EnvRunnersError(f"no {self._kind} is left")

    def _restart(self, indices: Sequence[int]) -> None:
        """Replace runners by new ones with the same indices, in the states of their last replies.

        A replacement that fails is replaced again, which counts as one more failure.

        Raises:
            EnvError: an environment fails in the same place again.
            EnvRunnersError: no restart is left.
        """
        left = list(indices)
        while left:
            for index in left:
                if not self.actors.can_restart(index):
                    limit = self._tolerance.max_num_env_runner_restarts
                    raise EnvRunnersError(f"{self._kind} {index} died after {limit} restarts")
            self.actors.restart(*left)
            failures = self._started_and_restored(left)
            for result in failures:
                if not self._is_tolerated(result, _OF_NO_FRAGMENT):
                    raise self._failure(result) from None
                again = f"{self._kind} {result.actor_id} fails again"
                _log.warning("%s: %s", again, _in_one_line(result))
                self.states.restarts[_cause(result)] += 1
            left = [result.actor_id for result in failures]

    def _started_and_restored(self, indices: list[int]) -> list[CallResult]:
        """Wait for new runners, restore their states and weights; returns the failures."""
        failures = self._scheduled(indices)
        for calls in (
            dict.fromkeys(indices, ("ping",)),
            {
                index: ("set_state", state)
                for index in indices
                if (state := self.states.replied.get(index)) is not None
            },
            dict.fromkeys(() if self._synced is None else indices, ("set_weights", self._synced)),
        ):
            failed = {result.actor_id for result in failures}
            going_on = {index: call for index, call in calls.items() if index not in failed}
            failures += [result for result in self._answers(going_on) if not result.ok]
        return failures

    def get_states(self) -> dict[int, dict[str, Any] | None]:
        """See `EnvRunnerGroup.get_states`."""
        taken = {index: self.states.taken.get(index) for index in self.actors.actor_ids}
        return {index: None if state is None else unpack(state) for index, state in taken.items()}

    def set_states(self, states: Mapping[int, dict[str, Any] | None]) -> None:
        """Restore the state of each runner; one without a state starts over."""
        own = {index: states.get(index) for index in self.actors.actor_ids}
        self.states.replied = {
            index: pack(state) for index, state in own.items() if state is not None
        }
        self.states.taken = dict(self.states.replied)
        self._settle()
        going_on = self.actors.healthy_actor_ids
        calls = {index: ("set_state", self.states.replied.get(index)) for index in going_on}
        self._call_all(calls, in_time=True)

    def give_up_rounds(self) -> None:
        """Restore the runners' states from before a round whose replies were not taken, if any."""
        states = self.states
        untaken = any(states.taken.get(i) is not state for i, state in states.replied.items())
        if untaken or self.actors.num_in_flight():
            self.set_states(self.get_states())
            if self._synced is not None:  # which runners without a state have lost
                self.sync_weights(self._synced)

    def _settle(self) -> None:
        """Wait for all unfinished calls, and drop their results; replace runners that fail."""
        actors = self.actors
        while actors.num_in_flight():
            answers = actors.fetch_ready_async_reqs(timeout_s=self.timeout_s)
            self._recover_dead(answers)
            if not answers:
                late = [index for index in actors.actor_ids if actors.num_in_flight(index)]
                self.recover_late(late, _OF_NO_FRAGMENT)
                for index in late:  # it will not be asked for the same again
                    self.states.late_with.pop(index, None)

    def foreach(self, function: Callable[[Any], Any]) -> list[Any]:
        """``function(runner)`` for all healthy runners; raises the first exception of a call.

        Between rounds, what it changes becomes part of the runners' states.
        """
        states, between = self.states, not self.actors.num_in_flight()
        calls = dict.fromkeys(self.actors.healthy_actor_ids, ("call", function))
        called = self._call_all(calls)
        for index, (_, state) in called.items() if between else ():
            if states.taken.get(index) is states.replied.get(index) is not None:
                states.taken[index] = states.replied[index] = state
        return [result for result, _ in called.values()]

    def sync_weights(self, weights: Mapping[str, Any]) -> None:
        """See `EnvRunnerGroup.sync_weights`."""
        sent = ray.put(weights)
        now = ray.get(sent)  # they may be changed in place
        several = self._synced is not None and self._spec.multi_agent is not None
        self._synced = {**self._synced, **now} if several else now
        self._call_all(dict.fromkeys(self.actors.healthy_actor_ids, ("set_weights", sent)))

    def interrupt(self) -> None:
        """See `EnvRunnerGroup.interrupt`."""
        self._interrupted = True
        for process_id in self._process_ids.values():
            if process_id is not None:
                with suppress(ProcessLookupError):
                    os.kill(process_id, INTERRUPT_SIGNAL)

    def stop(self) -> None:
        """Close all environments and end the actors."""
        if self.actors.num_in_flight() == 0:
            self.actors.foreach_actor("stop", timeout_s=2.0)
        self.actors.stop()

    def _call_all(
        self, calls: Mapping[int, tuple[Any, ...]], *, in_time: bool = False
    ) -> dict[int, Any]:
        """Call runners at once; those that are found dead are replaced and called again.

        Args:
            in_time: whether calls have a time limit, see `_answers`.

        Returns:
            The results by runner, without runners that are lost.

        Raises:
            BaseException: the first exception of a call.
        """
        results, left = dict[int, CallResult](), calls
        while left:
            called = self._answers(left) if in_time else self.actors.call_each(left)
            results |= {result.actor_id: result for result in called if not result.actor_failed}
            left = {index: calls[index] for index in self._recover_dead(called)}
        self._raise_unless_ok(results.values())
        return {index: results[index].value for index in sorted(results)}

    def _scheduled(self, indices: list[int]) -> list[CallResult]:
        """Wait until Ray has started the processes; return the failures of those that ended.

        Raises:
            EnvRunnersError: Ray found no place for one; a pending actor is an error, not a hang.
        """
        timeout_s = self._tolerance.env_runner_start_timeout_s
        results = self.actors.foreach_actor("place", actor_ids=indices, timeout_s=timeout_s)
        if len(results) < len(indices):
            raise EnvRunnersError(self._no_place(len(indices) - len(results), len(indices)))
        here = ray.get_runtime_context().get_node_id()
        for result in results:
            node, process_id = result.value if result.ok else (None, None)
            self._process_ids[result.actor_id] = process_id if node == here else None
        return [result for result in results if not result.ok]

    def _no_place(self, missing: int, number: int) -> str:
        if not list(node_resources()):
            return "Ray has ended: its raylet process was killed, perhaps as memory ran out"
        free = ray.available_resources()  # type: ignore[no-untyped-call]
        settings = self._spec.settings
        needs = {
            "CPU": settings.cpus_per_env_runner,
            "GPU": settings.num_gpus_per_env_runner,
            **settings.custom_resources_per_env_runner,
        }
        return (
            f"{missing} of {number} env runners could not be started within "
            f"fault_tolerance.env_runner_start_timeout_s="
            f"{self._tolerance.env_runner_start_timeout_s:g}. Each needs "
            + ", ".join(f"{need:g} {name}" for name, need in needs.items() if need)
            + "; available are "
            + ", ".join(f"{free.get(name, 0):g} {name}" for name, need in needs.items() if need)
        )

    def _answers(self, calls: Mapping[int, tuple[Any, ...]]) -> list[CallResult]:
        """The results of one call for each runner, ``(method, *arguments)``, made at once.

        Raises:
            EnvRunnersError: one is missing after ``env_runner_restore_timeout_s``.
        """
        timeout_s = self._tolerance.env_runner_restore_timeout_s
        results = self.actors.call_each(calls, timeout_s=timeout_s)
        missing = sorted(calls.keys() - {result.actor_id for result in results})
        if missing:
            late = f"no answer within fault_tolerance.env_runner_restore_timeout_s={timeout_s:g}"
            raise EnvRunnersError(self._silence(missing, late))
        return results

    def _raise_unless_ok(self, results: Iterable[CallResult]) -> None:
        for result in results:
            if not result.ok:
                raise self._failure(result) from None

    def _failure(self, result: CallResult) -> BaseException:
        """The exception of a runner, or an EnvRunnersError if its process died."""
        assert result.error is not None
        if not result.actor_failed:
            return result.error
        return EnvRunnersError(f"{self._kind} {result.actor_id} died: {result.death()}")


def _require_sendable(spec: RunnerSpec) -> None:
    """Raise InputError if code that has no import path cannot be pickled."""
    try:
        ray.cloudpickle.dumps(spec)  # type: ignore[no-untyped-call]
    except Exception as error:
        names = [name for name, code in spec.code.items() if not _is_sendable(code)]
        raise InputError(
            f"{', '.join(names) or 'the runner spec'} cannot be sent to env runners "
            f"({error}): put it at the top of a module, or set env_runners.num_env_runners to 0"
        ) from None


def _is_sendable(code: Any) -> bool:
    try:
        ray.cloudpickle.dumps(code)  # type: ignore[no-untyped-call]
    except Exception:
        return False
    return True


def _num_bytes(weights: Any) -> int:
    """Bytes of the arrays in weights; a custom policy's weights may have any form."""
    if isinstance(weights, Mapping | list | tuple):
        parts = weights.values() if isinstance(weights, Mapping) else weights
        return sum(map(_num_bytes, parts))
    return int(getattr(weights, "nbytes", 0))


def _cause(result: CallResult) -> str:
    return "died" if result.actor_failed else "env_error"


def _in_one_line(result: CallResult) -> str:
    """What has failed."""
    if result.actor_failed:
        return "its process died"
    last = (str(result.error).splitlines() or [type(result.error).__name__])[-1]
    return f"{result.error.reason}; {last}" if isinstance(result.error, EnvError) else last
