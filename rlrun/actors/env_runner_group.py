"""EnvRunnerGroup: all env runners of an algorithm, whether one in this process or many Ray actors.

Owns synchronous rounds of sampling; `RemoteRunners` handles runners that fail. Must not know
policies, batches or learning; imports Ray only for remote runners.

A round asks each runner for one fragment. Weights enter the object store once and travel with the
request. A runner that dies in the middle is restarted with the same index, in the state of its last
reply, and asked for the same fragment again: since every random number is a function of the seed,
the data are the same as if it had not died.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rlrun.config.retired import OldNames
from rlrun.config.schema import FaultToleranceConfig
from rlrun.data.sample_batch import MultiAgentBatch, SampleBatch
from rlrun.data.seeding import Role
from rlrun.sampling.runner_messages import RunnerSpec, SampleReply, SampleRequest, lone_request

if TYPE_CHECKING:
    import gymnasium as gym

    from rlrun.actors.remote_runners import RemoteRunners, Task

_GATHER_S = 1e-4  # for each reply, about what fetching takes

_log = logging.getLogger(__name__)


class EnvRunnerGroup(OldNames):
    """One local runner, or ``num_env_runners`` remote ones.

    Args:
        spec: what each runner is built from.
        num_env_runners: 0 samples in this process and never imports Ray.
        fault_tolerance: what happens when a runner fails.
        role: training or evaluation.
        runner_class: makes all runners; None for `EnvRunner`.
        wait: return when all remote runners are built; otherwise `wait_until_built` does, so that
            the caller can build its learner meanwhile.

    Attributes:
        local_env_runner: the runner in this process, or None.
        remote: the runners that are Ray actors, or None.

    Raises:
        EnvError: from a runner's constructor, as it was raised there.
    """

    old_names = MappingProxyType(
        {
            "foreach_worker": "use foreach_env_runner()",
            "local_worker": "use the attribute local_env_runner",
            "remote_workers": "use foreach_env_runner()",
            **dict.fromkeys(("add_workers", "remove_workers"), "use resize()"),
        }
    )

    def __init__(
        self,
        spec: RunnerSpec,
        *,
        num_env_runners: int,
        fault_tolerance: FaultToleranceConfig,
        role: Role = Role.TRAIN,
        runner_class: Callable[..., Any] | None = None,
        wait: bool = True,
    ) -> None:
        if runner_class is None:
            from rlrun.sampling.env_runner import EnvRunner

            runner_class = EnvRunner
        self.spec = spec
        self._make_runner = runner_class
        self._role, self._num_remote = role, num_env_runners
        self._next_fragment = self._weights_version = 0
        self.local_env_runner: Any = None
        self.remote: RemoteRunners | None = None
        if num_env_runners == 0 or spec.settings.create_env_on_local_worker:
            self._build_local()
        if num_env_runners > 0:
            from rlrun.actors.remote_runners import RemoteRunners

            self.remote = RemoteRunners(
                runner_class, spec, num_env_runners, fault_tolerance, self._runner_arguments, role
            )
            if wait:
                self.wait_until_built()

    def _runner_arguments(self, index: int, recreated: bool) -> dict[str, Any]:
        return {
            "runner_index": index,
            "role": self._role,
            "num_env_runners": self._num_remote,
            "recreated": recreated,
        }

    def _build_local(self) -> None:
        self.local_env_runner = self._make_runner(self.spec, **self._runner_arguments(0, False))

    def wait_until_built(self) -> None:
        """Wait for the remote runners' constructors.

        Raises:
            EnvError: or any other exception of a constructor.
            EnvRunnersError: Ray found no place for an actor, or its process ended.
        """
        if self.remote is not None:
            self.remote.wait_until_built()

    @property
    def indices(self) -> list[int]:
        """Indices of the runners that sample, healthy or not, in ascending order."""
        return [0] if self.remote is None else self.remote.actors.actor_ids

    @property
    def num_healthy(self) -> int:
        """Runners that take part in the next round."""
        return 1 if self.remote is None else len(self.remote.actors.healthy_actor_ids)

    @property
    def num_restarts(self) -> int:
        """Runners replaced since the start."""
        return 0 if self.remote is None else self.remote.actors.num_restarts

    def faults(self) -> dict[str, Any]:
        """What runners have lost in this session: restarts, also by cause, and env steps."""
        by_cause, dropped_env_steps = Counter[str](), 0
        if self.remote is not None:
            states = self.remote.states
            by_cause, dropped_env_steps = states.restarts, states.dropped_env_steps
        return {
            "restarts": self.num_restarts,
            "restarts_by_cause": {name: by_cause[name] for name in ("died", "env_error", "late")},
            "dropped_env_steps": dropped_env_steps,
        }

    @property
    def num_in_flight(self) -> int:
        """Requests that have not been answered."""
        return 0 if self.remote is None else self.remote.actors.num_in_flight()

    def spaces(self) -> tuple[gym.Space[Any], gym.Space[Any]]:
        """Observation and action space, from the local runner or an environment made for this."""
        if self.local_env_runner is not None:
            (spaces,) = self.local_env_runner.policy_spaces().values()
            return spaces
        return env_spaces(self.spec)

    def sample(
        self,
        request: SampleRequest | None = None,
        lengths: Sequence[int] | None = None,
        weights: Any = None,
    ) -> list[SampleReply]:
        """One synchronous round: a fragment from each runner, ordered by runner index.

        Args:
            request: None asks for the next fragment of the configured length.
            lengths: steps of each sub-environment for runner 1, 2, ...; None takes the request's
                for all.
            weights: the policies' weights, put into the object store once. With a request, runners
                load them if its `weights_version` is new; without one, as `sync_weights` does.

        Raises:
            EnvError: an environment failed, and would fail again.
            EnvRunnersError: a runner and its replacement did not answer in ``sample_timeout_s``, or
                a failure is not covered by the fault-tolerance settings.
        """
        if request is None:
            if weights is not None:
                self.sync_weights(weights)
                weights = None
            request = lone_request(self.spec.settings, self._next_fragment, self._weights_version)
        self._next_fragment = request.fragment + 1
        self._weights_version = request.weights_version
        if self.remote is not None:
            replies: list[SampleReply] = self.begin(request, lengths, weights).replies()
            return replies
        if lengths is not None:
            request = replace(request, length=lengths[0])
        return [self.local_env_runner.sample_fragment(request, weights)]

    def begin(
        self,
        request: SampleRequest,
        lengths: Sequence[int] | None = None,
        weights: Any = None,
        *,
        queued: bool = False,
    ) -> Round:
        """Begin a round of `sample` on remote runners, without waiting; `Round.replies` waits.

        Args:
            queued: whether a round before it is still under way; this one follows it.
        """
        assert self.remote is not None
        by_runner = None if lengths is None else dict(zip(self.indices, lengths, strict=True))
        return Round(self.remote, request, weights, by_runner, queued=queued)

    def left_over(self, lengths: Sequence[int], replies: Sequence[SampleReply]) -> list[int]:
        """Divide the vector steps of runners that did not reply among the healthy ones.

        Returns:
            Steps of each sub-environment, by runner; 0 for the lost ones.
        """
        there = {reply.runner_index for reply in replies}
        missing = sum(n for i, n in zip(self.indices, lengths, strict=True) if i not in there)
        able = self.indices if self.remote is None else self.remote.actors.healthy_actor_ids
        share, rest = divmod(missing, len(able))
        of_runner = {index: share + (i < rest) for i, index in enumerate(able)}
        return [of_runner.get(index, 0) for index in self.indices]

    def foreach_env_runner(self, function: Callable[[Any], Any]) -> list[Any]:
        """``function(runner)`` for the local runner if there is one, then all healthy remote ones.

        Raises:
            BaseException: the first exception of a call.
        """
        local = [] if self.local_env_runner is None else [function(self.local_env_runner)]
        return local if self.remote is None else local + self.remote.foreach(function)

    def foreach_env(self, function: Callable[[Any], Any]) -> list[list[Any]]:
        """``function(env)`` for each sub-environment, in its own process, by runner.

        The runners are those of `foreach_env_runner`.

        Raises:
            TypeError: the environment is a vector, whose sub-environments are not objects.
        """
        return self.foreach_env_runner(lambda runner: runner.foreach_env(function))

    def sync_weights(self, weights: Mapping[str, Any]) -> None:
        """Set the weights of all runners, by policy id; policies not named keep theirs.

        The weights of a single policy may be passed without its id. They enter the object store
        once, and runners started later receive them, too. `sample` can send weights with its
        request instead.
        """
        if self.local_env_runner is not None:
            self.local_env_runner.set_weights(weights)
        if self.remote is not None:
            self.remote.sync_weights(weights)

    def resize(self, num_env_runners: int) -> None:
        """Change the number of remote runners: end the last ones, or start more; restart lost ones.

        A new runner begins its first episodes; one that existed before continues where it was.

        Raises:
            ValueError: there are no remote runners, or none would be left.
            EnvError: or any other exception of a constructor.
            EnvRunnersError: Ray found no place for an actor; the group is as it was.
        """
        if self.remote is None or num_env_runners < 1:
            raise ValueError("only remote env runners can be added or removed, and one must remain")
        before, self._num_remote = self._num_remote, num_env_runners
        try:
            self.remote.resize(num_env_runners)
        except BaseException:
            self._num_remote = before
            raise

    def get_states(self) -> dict[int, dict[str, Any] | None]:
        """The state of each runner after the last of its replies that was taken, by runner index.

        None if no reply of the runner has been taken: it starts over.
        """
        if self.remote is None:
            return {0: self.local_env_runner.get_state()}
        return self.remote.get_states()

    def set_states(self, states: Mapping[int, dict[str, Any] | None]) -> None:
        """Restore the states of `get_states`.

        If the number of runners has changed, runners without a state begin with fresh episodes, and
        the running episodes of removed runners are dropped, with a warning.
        """
        if states.keys() != set(self.indices):
            _log.warning(
                "env runners %s continue in place of %s: new ones begin with fresh episodes, "
                "the running episodes of removed ones are dropped",
                ", ".join(map(str, self.indices)),
                ", ".join(map(str, sorted(states))),
            )
        if self.remote is not None:
            self.remote.set_states(states)
        elif states.get(0) is None:
            self.local_env_runner.stop()
            self._build_local()
        else:
            self.local_env_runner.set_state(states[0])

    def interrupt(self) -> None:
        """End the round under way, with KeyboardInterrupt, if an environment hangs or fails in it.

        Only runners on this node can be interrupted while they hang.
        """
        if self.remote is not None:
            self.remote.interrupt()

    def stop(self) -> None:
        """Close all environments and end the actors."""
        if self.local_env_runner is not None:
            self.local_env_runner.stop()
        if self.remote is not None:
            self.remote.stop()


def env_spaces(spec: RunnerSpec) -> tuple[gym.Space[Any], gym.Space[Any]]:
    """Observation and action space, from an environment that is made for this purpose."""
    from rlrun.envs.env import EnvContext
    from rlrun.envs.vector_env import make_vector_env
    from rlrun.envs.watchdog import close_in_time

    here = {"remote_worker_envs": False, "remote_env_batch_wait_ms": None}
    place = EnvContext(spec.env.kwargs, training=False)
    envs = make_vector_env(spec.env, 1, spec.settings.model_copy(update=here), place)
    try:
        return envs.single_observation_space, envs.single_action_space
    finally:
        close_in_time(envs.close)


class Round:
    """A request to each remote runner, sent at once; repeated until it has answered or is lost.

    A round whose `replies` were not returned is dropped by the next one: runners sample as if it
    had not been requested.

    Args:
        lengths: steps of each sub-environment, by runner; None takes the request's for all.
        tasks: task of each runner that gets the request; None sends it to all, to sample fragments.
        queued: whether a round before it is still under way; this one follows it.
    """

    def __init__(
        self,
        remote: RemoteRunners,
        request: SampleRequest,
        weights: Any,
        lengths: Mapping[int, int] | None = None,
        tasks: Mapping[int, Task] | None = None,
        *,
        queued: bool = False,
    ) -> None:
        self._remote, self._request = remote, request
        self._lengths, self._tasks = lengths, tasks
        self._weights = remote.sendable(weights)
        self._of_length: dict[int, SampleRequest] = {}
        self._tag = ("round", request.fragment)
        self._asked: set[int] = set()
        self._pending: set[int] = set()
        if not queued:
            remote.give_up_rounds()
        self._ask(remote.actors.healthy_actor_ids if tasks is None else list(tasks))

    def replies(self) -> list[Any]:
        """Wait for the replies, ordered by runner index."""
        remote, replies = self._remote, dict[int, Any]()
        self.ask_replaced()
        self._deadline = time.monotonic() + remote.timeout_s  # the round before has run till now
        while self._pending:
            left_s = max(0, self._deadline - time.monotonic())
            gather_s = _GATHER_S * len(self._pending)
            results = remote.actors.fetch_ready_async_reqs(
                tags=[self._tag], timeout_s=left_s, gather_s=gather_s
            )
            failed = [result for result in results if not result.ok]
            for result in results:
                self._pending.discard(result.actor_id)
                if result.ok:
                    replies[result.actor_id] = remote.received(result)
            if failed:
                self._ask_again(remote.recover(failed, self._request.fragment))
            elif not results:
                late, self._pending = sorted(self._pending), set()
                self._ask_again(remote.recover_late(late, self._request.fragment))
        remote.fragments_lost(self._length(index) for index in self._asked - replies.keys())
        if not replies:
            remote.fail_without_runners()
        remote.states.taken |= {index: remote.states.replied[index] for index in replies}
        return [replies[index] for index in sorted(replies)]

    def _ask(self, indices: Sequence[int]) -> None:
        sent = {index for index in indices if self._send(index)}
        self._asked |= sent
        self._pending |= sent
        self._deadline = time.monotonic() + self._remote.timeout_s

    def ask_replaced(self) -> None:
        """Repeat the requests of runners that were replaced meanwhile, and so have lost them."""
        lost = [i for i in self._pending if not self._remote.actors.num_in_flight(i)]
        self._pending.difference_update(lost)
        self._ask_again(lost)

    def _ask_again(self, indices: Sequence[int]) -> None:
        self._request = self._remote.with_connector_state(self._request)
        self._of_length.clear()
        self._ask(indices)

    def _send(self, index: int) -> bool:
        """Ask a runner for its fragment, if it has one."""
        length = self._length(index)
        if length not in self._of_length:
            self._of_length[length] = replace(self._request, length=length)
        request = self._of_length[length]
        task = None if self._tasks is None else self._tasks[index]
        if task is None and not request.length:
            return False
        return self._remote.send(index, request, self._weights, tag=self._tag, task=task)

    def _length(self, index: int) -> int:
        return self._request.length if self._lengths is None else self._lengths[index]


def synchronous_parallel_sample(
    group: EnvRunnerGroup,
    *,
    max_env_steps: int | None = None,
    max_agent_steps: int | None = None,
    weights: Any = None,
    concat: bool = True,
) -> SampleBatch | MultiAgentBatch | list[SampleBatch | MultiAgentBatch]:
    """Sample from all healthy runners (the local one if there are none) in whole rounds.

    For a group by itself: in an algorithm, `Algorithm.sample` also counts, and sends the weights.

    Args:
        group: the runners.
        max_env_steps: stop at this many env steps; whole rounds can overshoot.
        max_agent_steps: the same in agent steps. Without either limit: one round.
        weights: sent to the runners with the first round.
        concat: return one batch; otherwise a list with one batch per runner and round.

    Raises:
        ValueError: both limits are given.
    """
    if max_env_steps is not None and max_agent_steps is not None:
        raise ValueError("give max_env_steps or max_agent_steps, not both")
    batches: list[SampleBatch | MultiAgentBatch] = []
    env_steps = agent_steps = 0
    while True:
        for reply in group.sample(weights=weights):
            batches.append(reply.batch)
            env_steps += reply.env_steps
            agent_steps += reply.batch.agent_steps()
        weights = None
        if env_steps >= (max_env_steps or 0) and agent_steps >= (max_agent_steps or 0):
            break
    return SampleBatch.concat_samples(batches) if concat else batches
