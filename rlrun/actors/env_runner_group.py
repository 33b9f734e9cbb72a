"""EnvRunnerGroup: all env runners of an algorithm, whether one in this process or many Ray actors.

Owns synchronous rounds of sampling, what becomes of a runner that fails, and the states from which
one is restored. Knows nothing of policies, batches or learning; Ray is imported only for remote
runners.

A round asks each runner for one fragment. Weights enter the object store once and travel with the
request. A runner that dies in the middle comes back with the same index, in the state of its last
reply, and is asked for the same fragment again: since every random number is a function of the
seed, the data are what they would have been.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlrun.actors.runner_errors import EnvRunnersError, RunnerDiedError, death_of
from rlrun.sampling.seeding import Role

if TYPE_CHECKING:
    import gymnasium as gym

    from rlrun.actors.actor_manager import CallResult, FaultTolerantActorManager
    from rlrun.config.schema import FaultToleranceConfig
    from rlrun.sampling.runner_messages import RunnerSpec, SampleReply, SampleRequest

_log = logging.getLogger(__name__)
_SCHEDULING_TIMEOUT_S = 60.0  # for Ray to find a place for an actor and start its process


class EnvRunnerGroup:
    """One local runner, or ``num_env_runners`` remote ones.

    Args:
        spec: what each runner is built from.
        num_env_runners: 0 samples in this process and never imports Ray.
        fault_tolerance: what happens when a runner fails.
        role: training or evaluation.
        runner_class: the class of all runners.
        wait: return when all remote runners are built; otherwise `wait_until_built` does, so that
            the caller can build its learner meanwhile.

    Raises:
        EnvError: from a runner's constructor, as it was raised there.
    """

    def __init__(
        self,
        spec: RunnerSpec,
        *,
        num_env_runners: int,
        fault_tolerance: FaultToleranceConfig,
        role: Role = Role.TRAIN,
        runner_class: type[Any] | None = None,
        wait: bool = True,
    ) -> None:
        if runner_class is None:
            from rlrun.sampling.env_runner import EnvRunner

            runner_class = EnvRunner
        self.spec = spec
        self._runner_class: Any = runner_class
        self._role = role
        self.tolerance = fault_tolerance
        self._num_remote = num_env_runners
        # By remote runner: where it stood after its last reply, and after the last that was taken
        # out of the queue of an `AsynchronousSampler`; in synchronous rounds that is the same.
        self.states: dict[int, dict[str, Any]] = {}
        self.taken_states: dict[int, dict[str, Any]] = {}
        self.connector_state: dict[str, Any] | None = None
        self._next_fragment = 0
        self._weights_version = 0
        self.consecutive_failures = 0
        self.last_env_errors: dict[int, tuple[Any, ...]] = {}  # by runner: what and where
        self._process_ids: dict[int, int] = {}
        self.local_env_runner: Any = None
        self._manager: FaultTolerantActorManager | None = None
        if num_env_runners == 0 or spec.settings.create_env_on_local_worker:
            self._build_local()
        if num_env_runners > 0:
            self._start_remote(num_env_runners)
            if wait:
                self.wait_until_built()

    @property
    def manager(self) -> FaultTolerantActorManager | None:
        """The remote runners' actors; None if runners are in this process."""
        return self._manager

    @property
    def indices(self) -> list[int]:
        """Of the remote runners, healthy or not, in ascending order."""
        return [] if self._manager is None else self._manager.actor_ids

    def spaces(self) -> tuple[gym.Space[Any], gym.Space[Any]]:
        """Observation and action space, from the local runner or an environment made for this."""
        if self.local_env_runner is not None:
            envs = self.local_env_runner.envs
            return envs.single_observation_space, envs.single_action_space
        from rlrun.envs.vector_env import make_vector_env

        envs = make_vector_env(self.spec.env, 1, self.spec.settings)
        try:
            return envs.single_observation_space, envs.single_action_space
        finally:
            envs.close()

    @property
    def num_healthy(self) -> int:
        """Runners that take part in the next round."""
        return 1 if self._manager is None else len(self._manager.healthy_actor_ids)

    @property
    def num_restarts(self) -> int:
        """Runners replaced since the start."""
        return 0 if self._manager is None else self._manager.num_restarts

    @property
    def num_in_flight(self) -> int:
        """Requests that have not been answered."""
        return 0 if self._manager is None else self._manager.num_in_flight()

    def wait_until_built(self) -> None:
        """Wait for the remote runners' constructors.

        Raises:
            EnvError: or whatever the constructor raised.
            EnvRunnersError: Ray found no place for an actor, or its process ended.
        """
        if self._manager is None:
            return
        self._require_scheduled(self._manager.actor_ids)
        if self.spec.settings.validate_env_runners_after_construction:
            self._require_answers(self._manager.actor_ids)

    def sample(
        self,
        request: SampleRequest | None = None,
        lengths: Sequence[int] | None = None,
        weights: Any = None,
    ) -> list[SampleReply]:
        """One synchronous round: a fragment from each runner, ordered by runner index.

        Args:
            request: None asks for the next fragment of the configured length.
            lengths: steps of each lane for runner 1, 2, ...; None takes the request's for all.
            weights: the policy's, put into the object store once.

        Raises:
            EnvError: an environment failed, and would again.
            EnvRunnersError: no runner answered in ``sample_timeout_s``, or failures that the
                fault-tolerance settings do not cover.
        """
        request = self._complete(request)
        self._next_fragment = request.fragment + 1
        self._weights_version = request.weights_version
        if request.connector_state is not None:
            self.connector_state = request.connector_state
        if self._manager is None:
            if lengths is not None:
                request = replace(request, length=lengths[0])
            return [self.local_env_runner.sample_fragment(request, weights)]
        from rlrun.actors.sampling_round import SamplingRound

        return SamplingRound(self, self._manager, request, lengths, weights).run()

    def foreach_env_runner(self, function: Callable[[Any], Any]) -> list[Any]:
        """``function(runner)`` for the local runner if there is one, then all healthy remote ones.

        Raises:
            BaseException: the first that a call raised.
        """
        local = [] if self.local_env_runner is None else [function(self.local_env_runner)]
        if self._manager is None:
            return local
        results = self._manager.foreach_actor("apply", function)
        for result in results:
            if result.error is not None and not result.actor_failed:
                raise result.error
        return local + [result.value for result in results if result.ok]

    def get_states(self) -> dict[int, dict[str, Any] | None]:
        """Where each runner stood after the last of its replies that was taken, by runner index.

        None for a runner of which no reply has been taken: it begins again.
        """
        if self._manager is None:
            return {0: self.local_env_runner.get_state()}
        return {index: self.taken_states.get(index) for index in self.indices}

    def set_states(self, states: Mapping[int, dict[str, Any] | None]) -> None:
        """Have each runner go on from its state of `get_states`.

        Where their number has changed, those that had none begin with fresh episodes, and the
        running episodes of those that are gone are given up; the log says so.
        """
        indices = self.indices or [0]
        if states.keys() != set(indices):
            _log.warning(
                "env runners %s go on in place of %s: new ones begin with fresh episodes, "
                "the running episodes of those that are gone are given up",
                ", ".join(map(str, indices)),
                ", ".join(map(str, sorted(states))),
            )
        if self._manager is None:
            if states.get(0) is None:
                self.local_env_runner.stop()
                self._build_local()
            else:
                self.local_env_runner.set_state(states[0])
            return
        own = {index: states.get(index) for index in indices}
        self.states = {index: state for index, state in own.items() if state is not None}
        self.taken_states = dict(self.states)
        for index in self._manager.healthy_actor_ids:
            self._restore(index)

    def stop(self) -> None:
        """Close all environments and end the actors."""
        if self.local_env_runner is not None:
            self.local_env_runner.stop()
        if self._manager is not None:
            if self._manager.num_in_flight() == 0:
                self._manager.foreach_actor("stop", timeout_s=2.0)
            self._manager.stop()

    def restart(self, index: int) -> None:
        """Replace a remote runner; the new one has the index, and the state of the last reply.

        Raises:
            EnvError: the environment cannot be built again.
            EnvRunnersError: no restart is left.
        """
        assert self._manager is not None
        while True:
            if not self._manager.can_restart(index):
                limit = self.tolerance.max_num_env_runner_restarts
                raise EnvRunnersError(f"env runner {index} died after {limit} restarts")
            self._manager.restart(index)
            try:
                self._require_scheduled([index])
                self._require_answers([index])
                if index in self.states:
                    self._restore(index)
            except RunnerDiedError:
                continue
            return

    def last_error_line(self, index: int) -> str | None:
        """What the process of a remote runner wrote to stderr last, if this machine knows."""
        from rlrun.actors.ray_runtime import last_error_line

        return last_error_line(self._process_ids[index]) if index in self._process_ids else None

    def _restore(self, index: int) -> None:
        assert self._manager is not None
        results = self._manager.foreach_actor(
            "set_state",
            self.states.get(index),
            actor_ids=[index],
            timeout_s=self.tolerance.env_runner_restore_timeout_s,
        )
        self._raise_unless_ok(results, [index], "restored")

    def _complete(self, request: SampleRequest | None) -> SampleRequest:
        if request is not None:
            return request
        from rlrun.sampling.runner_messages import SampleRequest as Request

        length = self.spec.settings.rollout_fragment_length
        return Request(
            fragment=self._next_fragment,
            length=200 if length == "auto" else length,
            weights_version=self._weights_version,
        )

    def _runner_arguments(self, index: int, recreated: bool) -> dict[str, Any]:
        return {
            "runner_index": index,
            "role": self._role,
            "num_env_runners": self._num_remote,
            "recreated": recreated,
        }

    def _build_local(self) -> None:
        self.local_env_runner = self._runner_class(self.spec, **self._runner_arguments(0, False))

    def _start_remote(self, number: int) -> None:
        import ray

        from rlrun.actors.actor_manager import FaultTolerantActorManager
        from rlrun.actors.runner_host import RunnerHost
        from rlrun.config import registry

        settings = self.spec.settings
        host_class: Any = ray.remote(
            num_cpus=settings.num_cpus_per_env_runner,
            num_gpus=settings.num_gpus_per_env_runner,
            resources={k: float(v) for k, v in settings.custom_resources_per_env_runner.items()},
            max_restarts=0,  # restarts are ours: they restore a state
        )(RunnerHost)
        creator = registry.ENVS.get(self.spec.env.use)
        creators = {} if creator is None else {self.spec.env.use: creator}

        def make(index: int, recreated: bool) -> Any:
            host = host_class.remote()
            arguments = self._runner_arguments(index, recreated)
            host.build.remote(self._runner_class, self.spec, arguments, creators)
            return host

        self._manager = FaultTolerantActorManager(
            make,
            number,
            max_in_flight=settings.max_requests_in_flight_per_env_runner,
            max_restarts=self.tolerance.max_num_env_runner_restarts,
            restart_delay_s=self.tolerance.delay_between_env_runner_restarts_s,
        )

    def _require_scheduled(self, indices: list[int]) -> None:
        """Wait until Ray has started the processes; a pending actor is an error, not a hang."""
        import ray

        assert self._manager is not None
        results = self._manager.foreach_actor(
            "process_id", actor_ids=indices, timeout_s=_SCHEDULING_TIMEOUT_S
        )
        if len(results) < len(indices):
            free = ray.available_resources()  # type: ignore[no-untyped-call]
            settings = self.spec.settings
            raise EnvRunnersError(
                f"{len(indices) - len(results)} of {len(indices)} env runners could not be started "
                f"within {_SCHEDULING_TIMEOUT_S:.0f} s. Each needs "
                f"{settings.num_cpus_per_env_runner:g} CPUs and "
                f"{settings.num_gpus_per_env_runner:g} GPUs; free are {free.get('CPU', 0):g} CPUs "
                f"and {free.get('GPU', 0):g} GPUs"
            )
        self._raise_unless_ok(results, indices, "started")
        self._process_ids.update({result.actor_id: result.value for result in results})

    def _require_answers(self, indices: list[int]) -> None:
        assert self._manager is not None
        results = self._manager.foreach_actor(
            "ping",
            actor_ids=indices,
            timeout_s=self.tolerance.env_runner_restore_timeout_s,
        )
        self._raise_unless_ok(results, indices, "built")

    def _raise_unless_ok(self, results: list[CallResult], indices: list[int], what: str) -> None:
        for result in results:
            if result.error is not None and not result.actor_failed:
                raise result.error
            if result.error is not None:
                raise RunnerDiedError(death_of(result)) from None
        if len(results) < len(indices):
            missing = sorted(set(indices) - {result.actor_id for result in results})
            raise EnvRunnersError(f"env runners {missing} could not be {what} in time")
