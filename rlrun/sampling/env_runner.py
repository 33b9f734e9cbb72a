"""EnvRunner: environments and policies turn into sample batches, in this process or as a Ray actor.

Owns fragments, the runner's state and the policies that there are, always by id: one entry for an
environment with one agent, several where agents have policies of their own. Steps are made by the
`SamplingLoop`.

    T  steps of a fragment      B  the runner's sub-environments
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from time import perf_counter
from types import MappingProxyType
from typing import Any

from rlrun.config.old_names import OldNames
from rlrun.config.policies import PolicySettings
from rlrun.config.registry import import_object
from rlrun.data import columns as col
from rlrun.data.sample_batch import DEFAULT_POLICY_ID, MultiAgentBatch, SampleBatch
from rlrun.data.seeding import (
    Role,
    fragment_noise,
    generators_seed,
    policy_key,
    seeded_generators,
)
from rlrun.envs.env import EnvContext
from rlrun.envs.env_process import EnvProxy
from rlrun.envs.episode_vector_env import EpisodeVectorEnv
from rlrun.envs.horizon import make_horizon
from rlrun.envs.multi_agent_env import SubEnvs
from rlrun.envs.multi_agent_vector_env import MultiAgentVectorEnv
from rlrun.envs.rebuilder import Rebuilder
from rlrun.envs.recorded_step import Recorder
from rlrun.envs.serial_vector_env import SerialVectorEnv
from rlrun.envs.vector_env import make_sub_envs, make_vector_env
from rlrun.envs.watchdog import close_in_time, end_late_calls
from rlrun.policies.policy import Policy
from rlrun.policies.policy_mapping import AgentMapping, Spaces, policy_spaces
from rlrun.sampling.agent_envs import AgentEnvs
from rlrun.sampling.bounds_check import BoundsCheck
from rlrun.sampling.episode_callbacks import METHODS, EpisodeCallbacks
from rlrun.sampling.episode_replay import warn_of_length
from rlrun.sampling.episodes import (
    AgentEpisodes,
    EndlessPlan,
    EpisodeRecord,
    LockStepEpisodes,
    Plan,
)
from rlrun.sampling.lock_step_envs import LockStepEnvs
from rlrun.sampling.policy_actor import PolicyActor
from rlrun.sampling.postprocessing import Postprocessing, only_agent
from rlrun.sampling.runner_connectors import RunnerConnectors
from rlrun.sampling.runner_messages import (
    RunnerSpec,
    SampleReply,
    SampleRequest,
    for_policy,
    lone_request,
    tell_exploration,
)
from rlrun.sampling.sampling_loop import SamplingLoop


class EnvRunner(OldNames):
    """Steps several copies of an environment with the policies of its agents.

    Standalone: ``EnvRunner(RunnerSpec(EnvSpec(use="CartPole-v1"))).sample()`` is one fragment; with
    several agents::

        policies = {"p": PolicySettings(ModelConfig(), TrainingConfig())}
        spec = RunnerSpec(EnvSpec(use="..."), multi_agent=MultiAgentSpec(policies))
        batch = EnvRunner(spec).sample()

    Args:
        runner_index: 0 in the driver, 1..n for Ray actors; part of every random number's key.
        role: training or evaluation, whose random numbers never meet.
        num_env_runners: how many Ray actors sample; environments see it in their context.
        recreated: this runner replaces one that died; environments see that, too.
        render_mode: gymnasium's, for each environment.

    Attributes:
        envs: the environments.
        actors: what acts for the agents of each policy, by id.
        policies: all policies, by id; an environment with one agent has the `default_policy`.
        postprocess: what is done to trajectories before they are sent.

    Raises:
        EnvError: an environment cannot be built, or does not do what its spaces say.
        ConfigError: its agents do not fit the policies.
    """

    old_names = MappingProxyType({"policy_map": "its successor is `policies`"})

    def __init__(
        self,
        spec: RunnerSpec,
        *,
        runner_index: int = 0,
        role: Role = Role.TRAIN,
        num_env_runners: int = 0,
        recreated: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.spec, self.runner_index, self.role = spec, runner_index, role
        self.num_envs = spec.settings.num_envs_per_env_runner
        self._context = EnvContext(
            spec.env.kwargs,
            worker_index=runner_index,
            num_workers=num_env_runners,
            recreated_worker=recreated,
            training=role is Role.TRAIN,
        )
        self._render_mode = render_mode
        # With one agent each, sub-environments are slots, unless they do not wait for each other.
        self._lock_step = (
            spec.multi_agent is None and spec.settings.remote_env_batch_wait_ms is None
        )
        self._mapping = AgentMapping(spec.multi_agent.agents if spec.multi_agent else None)
        self._rebuilder = Rebuilder(
            spec.env.use,
            spec.restart_failed_sub_environments,
            spec.max_sub_environment_failures_per_1000_steps,
        )
        # What is evaluated is what training has proven.
        self._rebuilder.proven = role is Role.EVALUATION
        made = [
            (import_object(one.spec.use)(**one.spec.arguments()), one) for one in spec.callbacks
        ]
        self._callbacks = [(callbacks, one.methods) for callbacks, one in made]
        self._ending = self._with("on_sample_end")
        self.envs: Any = self._make_envs()
        with ExitStack() as failed:
            failed.callback(self.stop)
            self._prepare(spec)
            failed.pop_all()

    def _prepare(self, spec: RunnerSpec) -> None:
        """Make what samples in the environments, which are there."""
        for callbacks in self._with("on_environment_created"):
            callbacks.on_environment_created(self, self.envs, self._context)
        self._settings: dict[str, PolicySettings | None] = {}
        self.actors: dict[str, PolicyActor] = {}
        self.policies: dict[str, Policy] = {}
        plan = EndlessPlan(spec.seed, self.role, self.runner_index)
        self._watch = self.episode_callbacks()
        self._slot_envs = self.slot_envs(plan, recorder=self._watch)
        self._loop = SamplingLoop(self._slot_envs, self.actors)
        self.postprocess = Postprocessing({}, self._with("on_postprocess_trajectory"), self)
        if spec.multi_agent is None:
            self._set_policies({DEFAULT_POLICY_ID: None})
        else:
            self.set_policies(spec.multi_agent.policies)
        self.weights_version = -1
        self._next_fragment = 0
        self._unfinished = False  # whether an exception has ended a fragment in the middle
        self._warned_of_length = self.runner_index > 1  # that an episode is too long to be repeated
        self._bounds: BoundsCheck | None = None
        if spec.settings.observation_check_interval and not spec.settings.disable_env_checking:
            self._bounds = BoundsCheck(spec.settings, self._slot_envs, self.policy_spaces)

    # -- environments --------------------------------------------------------------------------

    def _make_envs(self) -> EpisodeVectorEnv | SubEnvs:
        place = self.spec.env, self.num_envs, self.spec.settings, self._context
        limit_s = self.spec.env_timeout_s
        given: dict[str, Any] = {
            "render_mode": self._render_mode,
            "created": self._created if self._with("on_sub_environment_created") else None,
            "env_timeout_s": limit_s,
        }
        self._watchdog = end_late_calls(limit_s)
        try:
            if not self._lock_step:
                several = self.spec.multi_agent is not None
                return make_sub_envs(*place, several=several, **given)
            return make_vector_env(*place, **given, rebuilder=self._rebuilder)
        except BaseException:
            self._end_watchdog()
            raise

    def _end_watchdog(self) -> None:
        if self._watchdog is not None:
            self._watchdog.stop()

    def _created(self, env_index: int, env: Any) -> None:
        context = self._context.for_sub_env(env_index)
        for callbacks in self._with("on_sub_environment_created"):
            callbacks.on_sub_environment_created(self, env, context, env_index)

    def slot_envs(
        self, plan: Plan, *, collects: bool = True, recorder: Recorder | None = None
    ) -> LockStepEnvs | AgentEnvs:
        """This runner's environments, running the episodes of a plan.

        Args:
            collects: whether fragments are collected; without, as in evaluation, no horizon is
                soft.
            recorder: shown each step.
        """
        spec, env_id = self.spec, self.spec.env.use
        place: dict[str, Any] = {"runner_index": self.runner_index}
        if self._lock_step:
            can_reset = self.envs.resets_single_envs
            return LockStepEnvs(
                self.envs,
                LockStepEpisodes(plan, self.num_envs, spec.max_replayed_env_steps),
                make_horizon(spec.settings, env_id, soft=collects, can_reset=can_reset),
                env_id,
                collects=collects,
                recorder=recorder,
                info_keys=spec.info_keys,
                **place,
            )

        def make(source: AgentEnvs) -> MultiAgentVectorEnv:
            env = MultiAgentVectorEnv(
                self.envs,
                self._mapping,
                env_id,
                source,
                horizon=make_horizon(spec.settings, env_id, soft=collects),
                rebuilder=self._rebuilder,
                recorder=recorder,
                **place,
            )
            env.info_keys = spec.info_keys
            return env

        return AgentEnvs(
            make,
            AgentEpisodes(plan, self.num_envs, spec.max_replayed_env_steps),
            env_id,
            whole_episodes=self._whole_episodes,
            count_agent_steps=spec.multi_agent is not None and spec.multi_agent.count_agent_steps,
            **place,
        )

    def episode_callbacks(self) -> EpisodeCallbacks | None:
        """What shows episodes to callbacks; None where none has a method for them."""
        by_method = {name: found for name in METHODS if (found := self._with(name))}
        return EpisodeCallbacks(by_method, self) if by_method else None

    def _with(self, method: str) -> list[Any]:
        return [callbacks for callbacks, methods in self._callbacks if method in methods]

    def foreach_env(self, function: Callable[[Any], Any]) -> list[Any]:
        """``function(env)`` of each sub-environment, in the process in which it is.

        Raises:
            TypeError: the environment is a vector, whose sub-environments are no objects.
        """
        if not isinstance(self.envs, SubEnvs | SerialVectorEnv):
            raise TypeError(f"{self.spec.env.use} is a vector of environments, a single object")
        here = (env for env in self.envs.envs)
        return [env.apply(function) if isinstance(env, EnvProxy) else function(env) for env in here]

    @property
    def _whole_episodes(self) -> bool:
        return self.spec.settings.batch_mode == "complete_episodes"

    @classmethod
    def as_remote(cls, **options: Any) -> Any:
        """This class as a Ray actor class; ``options`` are Ray's (``num_cpus=1``, ...)."""
        import ray

        return ray.remote(**options)(cls) if options else ray.remote(cls)

    # -- policies ------------------------------------------------------------------------------

    def set_policies(self, policies: Mapping[str, PolicySettings]) -> None:
        """Have exactly these policies; those that stay keep what they know.

        Episodes in which an agent has a policy that is gone are given up.
        """
        if policies != self._settings:
            self._set_policies(policies)

    def _set_policies(self, policies: Mapping[str, PolicySettings | None]) -> None:
        spaces = self.policy_spaces(policies)
        for policy_id, settings in policies.items():
            if policy_id not in self.actors:
                self.actors[policy_id] = self._make_actor(policy_id, settings, spaces[policy_id])
        given_up = []
        if isinstance(self._slot_envs, AgentEnvs):
            given_up = self._slot_envs.set_policies(spaces, self.actors)
        for policy_id in self.actors.keys() - policies.keys():
            del self.actors[policy_id]
        self._settings = dict(policies)
        self.policies = {policy_id: actor.policy for policy_id, actor in self.actors.items()}
        self.postprocess.set_policies(self.policies)
        self._perturbs = any(actor.noise.parameters for actor in self.actors.values())
        if isinstance(self._slot_envs, AgentEnvs):
            self._slot_envs.begin_again(given_up, self.actors)

    def policy_spaces(
        self, policies: Mapping[str, PolicySettings | None] | None = None
    ) -> dict[str, Spaces]:
        """The environment's spaces for each of these policies, or of the present ones."""
        policies = self._settings if policies is None else policies
        if self._lock_step:
            spaces = self.envs.single_observation_space, self.envs.single_action_space
            return {DEFAULT_POLICY_ID: spaces}
        if self.spec.multi_agent is None:
            (observation_space,) = self.envs.envs[0].observation_spaces.values()
            (action_space,) = self.envs.envs[0].action_spaces.values()
            return {DEFAULT_POLICY_ID: (observation_space, action_space)}
        settings = {name: one for name, one in policies.items() if one is not None}
        found = policy_spaces(self.envs.envs[0], self._mapping, settings)
        return {policy_id: found[policy_id] for policy_id in settings}

    def _make_actor(
        self, policy_id: str, settings: PolicySettings | None, spaces: Spaces
    ) -> PolicyActor:
        spec = self.spec
        key: tuple[int, ...] = self.role, self.runner_index
        if settings is not None:
            spec, key = for_policy(spec, policy_id, settings), (*key, policy_key(policy_id))
        slots = self.num_envs * self._agents_per_env
        connectors = RunnerConnectors(spec, *spaces, num_slots=slots, key=key, policy=settings)
        return self.make_actor(connectors)

    @property
    def _agents_per_env(self) -> int:
        return 1 if self.spec.multi_agent is None else len(self.envs.envs[0].possible_agents)

    def make_actor(self, connectors: RunnerConnectors, **settings: Any) -> PolicyActor:
        """An actor of a policy between these connectors; ``settings`` are `PolicyActor`'s."""
        num_slots = self.num_envs if self._lock_step else None
        explore = {"explore": self.spec.settings.explore, **settings}
        return PolicyActor(
            connectors,
            self.spec.settings,
            num_slots=num_slots,
            every_step_counts=not self._lock_step or self.envs.every_step_counts,
            num_agents=self._agents_per_env,
            **explore,
        )

    @property
    def policy(self) -> Policy:
        """The policy of an environment with one agent."""
        return self.actors[DEFAULT_POLICY_ID].policy

    def set_weights(self, weights: Any) -> None:
        """Set the weights of some policies, by id, or of the only policy, of any version.

        A request may be older than a policy that came since.
        """
        alone = self.spec.multi_agent is None
        if alone and not (isinstance(weights, dict) and DEFAULT_POLICY_ID in weights):
            weights = {DEFAULT_POLICY_ID: weights}
        for policy_id, values in weights.items():
            if policy_id in self.actors:
                self.actors[policy_id].policy.set_weights(values)

    def get_weights(self) -> dict[str, Any]:
        """Weights of all policies, by id."""
        return {policy_id: policy.get_weights() for policy_id, policy in self.policies.items()}

    def load(self, weights: Any, version: int, connector_state: Mapping[str, Any] | None) -> None:
        """Take over weights, the only policy's or by policy id, and merged connector statistics."""
        if weights is not None and version != self.weights_version:
            self.set_weights(weights)
        self.weights_version = version
        if self.role is Role.EVALUATION:
            for actor in self.actors.values():
                actor.forget_custom()
        for policy_id, state in (connector_state or {}).items():
            if policy_id in self.actors:
                self.actors[policy_id].connectors.set_state(state)

    # -- learning ------------------------------------------------------------------------------

    def learn_on_batch(self, batch: SampleBatch | MultiAgentBatch) -> dict[str, dict[str, Any]]:
        """Let each policy that learns do so on its part of a batch; statistics by policy."""
        return {
            policy_id: self.actors[policy_id].policy.learn_on_batch(part) or {}
            for policy_id, part in self._to_learn(batch)
        }

    def compute_gradients(
        self, batch: SampleBatch | MultiAgentBatch
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Gradients of each policy that learns on its part of a batch, and statistics."""
        found = {
            policy_id: self.actors[policy_id].policy.compute_gradients(part)
            for policy_id, part in self._to_learn(batch)
        }
        return {name: one[0] for name, one in found.items()}, {n: s for n, (_, s) in found.items()}

    def apply_gradients(self, gradients: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Improve policies with gradients by their ids; statistics."""
        return {
            policy_id: self.actors[policy_id].policy.apply_gradients(gradient)
            for policy_id, gradient in gradients.items()
        }

    def _to_learn(self, batch: SampleBatch | MultiAgentBatch) -> Iterator[tuple[str, SampleBatch]]:
        for policy_id, part in batch.as_multi_agent().policy_batches.items():
            settings = self._settings[policy_id]
            if settings is None or settings.train:
                yield policy_id, part

    # -- fragments -----------------------------------------------------------------------------

    def sample(self) -> SampleBatch | MultiAgentBatch:
        """One fragment with the present weights.

        It has ``rollout_fragment_length`` steps of each sub-environment.

        Returns:
            A MultiAgentBatch, or a SampleBatch where the default policy is the only one.
        """
        request = lone_request(self.spec.settings, self._next_fragment, self.weights_version)
        place = self.spec.seed, self.role, self.runner_index, request.fragment
        with seeded_generators(generators_seed(*place)):
            return self.sample_fragment(request).batch

    def sample_fragment(self, request: SampleRequest, weights: Any = None) -> SampleReply:
        """Collect exactly ``request.length * B`` env steps.

        Args:
            weights: the policies' weights, taken over if their version is new.
        """
        if self._unfinished:
            self._begin_afresh()
        started, loop, envs = perf_counter(), self._loop, self._slot_envs
        if request.policies is not None:
            self.set_policies(request.policies)
        self.load(weights, request.weights_version, request.connector_state)
        tell_exploration(self.policies, request.exploration, self.runner_index)
        self._next_fragment = request.fragment + 1
        loop.policy_s = loop.env_s = 0.0
        self._unfinished = True
        self._begin_fragment(request)
        step = loop.step
        if self._watch is not None:
            step = self._watch.stepping(step, envs.episodes)
        bounds = self._bounds
        if bounds is not None and bounds.left <= request.length:
            step = bounds.stepping(step)
        elif bounds is not None:
            bounds.left -= request.length
        try:
            env_steps, vector_steps = envs.collect(step, self.actors, request.length)
        finally:
            if self._perturbs:
                self._end_perturbation()
        envs.end_fragment(self.actors)
        if self._watch is not None:
            self._watch.require_lasting()
        batches = self._build(env_steps)
        self._unfinished = False
        timings = {"policy": loop.policy_s, "env": loop.env_s}
        reply = SampleReply(
            runner_index=self.runner_index,
            weights_version=self.weights_version,
            batches=batches,
            env_steps=env_steps,
            agent_steps=sum(len(one) for one in batches.policy_batches.values()),
            vector_steps=vector_steps,
            episodes=envs.episodes.records if self._lock_step else self._finished_episodes(),
            connector_deltas={
                policy_id: actor.connectors.flush_deltas()
                for policy_id, actor in self.actors.items()
                if actor.connectors.stateful
            },
            timings_s=timings,
            longest_running_episode=envs.longest_episode,
            faulty_episodes=envs.episodes.num_failed,
        )
        longest, limit = reply.longest_running_episode, self.spec.max_replayed_env_steps
        if longest > limit and not self._warned_of_length and envs.is_replayed:
            self._warned_of_length = True
            warn_of_length(self.spec.env.use, longest, limit)
        timings["other"] = perf_counter() - started - loop.policy_s - loop.env_s
        return reply

    def _begin_afresh(self) -> None:
        """Give up all running episodes after a fragment that was not finished."""
        self._unfinished, old = False, self._slot_envs.episodes
        self._slot_envs = self._loop.envs = self.slot_envs(old.plan, recorder=self._watch)
        self._slot_envs.episodes.follow(old)
        for policy_id, actor in self.actors.items():
            self.actors[policy_id] = self.make_actor(actor.connectors)
        if isinstance(self._slot_envs, AgentEnvs):
            self._slot_envs.set_policies(self.policy_spaces(), self.actors)
        if self._bounds is not None:
            self._bounds.envs = self._slot_envs

    def _finished_episodes(self) -> list[EpisodeRecord]:
        records = self._slot_envs.episodes.records
        return records if self.spec.multi_agent else [record.of_one_agent() for record in records]

    def _begin_fragment(self, request: SampleRequest) -> None:
        envs, together = self._slot_envs, self._lock_step
        first_unroll_id = (self.runner_index << 48) | (request.fragment << 16)
        for policy_id, actor in self.actors.items():
            unsent = request.leave_out.get(policy_id, frozenset())
            actor.begin_fragment(unsent, request.length if together else None, first_unroll_id)
            if self.spec.settings.explore:
                place = self.spec.seed, self.role, self.runner_index, request.fragment
                key = () if together else (policy_key(policy_id),)
                rng, slots = fragment_noise(*place, *key), self.num_envs if together else None
                actor.noise.begin_fragment(rng, request.length, slots)
        envs.begin_fragment(self.actors)
        envs.start(self.actors)

    def _end_perturbation(self) -> None:
        """Let policies have their own weights again."""
        renew = any(record.env_index == 0 for record in self._slot_envs.episodes.records)
        for actor in self.actors.values():
            if actor.noise.parameters is not None:
                actor.noise.parameters.end_fragment(renew=renew)

    def _build(self, env_steps: int) -> MultiAgentBatch:
        """The policies' batches, postprocessed, without what learning does not need."""
        envs, plain = self._slot_envs, self.postprocess.does_nothing and not self._ending
        running = envs.running if isinstance(envs, AgentEnvs) else ()
        batches: dict[str, SampleBatch] = {}
        for policy_id, actor in self.actors.items():
            batch = actor.build(running, everything=not plain)
            if self.spec.multi_agent is None or len(batch):
                batches[policy_id] = batch
        if not self.postprocess.does_nothing:
            name = envs.agent_name if isinstance(envs, AgentEnvs) else only_agent
            batches = self.postprocess(batches, name)
        samples = MultiAgentBatch(batches, env_steps)
        if self._ending:
            self._end_sample(samples)
        if not plain:
            for policy_id, batch in samples.policy_batches.items():
                batch.discard(col.WEIGHTS_CHECKSUM)  # observations may have been changed
                for column in self.actors[policy_id].inputs.leave_out & batch.keys():
                    del batch[column]
        if self.runner_index > 0 and self.spec.settings.compress_observations:
            for batch in samples.policy_batches.values():
                batch.compress()
        return samples

    def _end_sample(self, samples: MultiAgentBatch) -> None:
        """Let callbacks change the fragment, but for the number of its rows."""
        rows = {policy_id: len(batch) for policy_id, batch in samples.policy_batches.items()}
        for callbacks in self._ending:
            callbacks.on_sample_end(self, samples.unwrapped())
            now = {policy_id: len(batch) for policy_id, batch in samples.policy_batches.items()}
            try:
                samples.check_valid()
                if now != rows:
                    raise ValueError(f"{now} rows by policy are left of {rows}")
            except ValueError as error:
                name = f"{type(callbacks).__name__}.on_sample_end"
                raise ValueError(f"{name}: {error}; the number of rows must stay") from None

    # -- state ---------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Where the environments stand; enough to go on in another process.

        Plain numbers and arrays.
        """
        if self._unfinished:
            self._begin_afresh()
        watched = {} if self._watch is None else {"live_episodes": self._watch.get_state()}
        return {
            **watched,
            "rebuilder": self._rebuilder.get_state(),
            "next_fragment": self._next_fragment,
            "policies": {name: actor.get_state() for name, actor in self.actors.items()},
            **self._slot_envs.get_state(self.actors),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where the runner of a state stood; see `LockStepEnvs` and `AgentEnvs`."""
        if self._unfinished:
            self._begin_afresh()
        self._next_fragment = int(state["next_fragment"])
        self.weights_version = -1  # weights of another run may have the same number
        self._rebuilder.set_state(state["rebuilder"])  # environments may raise in what follows
        self._slot_envs.set_state(state, self.actors, state["policies"])
        if self._watch is not None:
            self._watch.set_state(state.get("live_episodes", ()))

    def ping(self) -> int:
        """Answer a health probe."""
        return self.runner_index

    def stop(self) -> None:
        """Close the environments."""
        self._end_watchdog()
        close_in_time(self.envs.close)
