"""EnvRunner: environments and policies turn into sample batches, in this process or as a Ray actor.

Owns fragments, the runner's state and the policies, always by id: one for an environment with one
agent, several where agents have policies of their own. The environments are built by
`RunnerEnvironments`, and stepped by the `SamplingLoop`.

    T  steps of a fragment      B  the runner's sub-environments
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import wraps
from time import perf_counter
from types import MappingProxyType
from typing import Any, TypeVar, cast

from rlrun.config.policies import PolicySettings
from rlrun.config.registry import DEFAULT_COLLECTOR, import_object
from rlrun.config.retired import OldNames
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
from rlrun.envs.errors import EnvError
from rlrun.envs.multi_agent_env import SubEnvs
from rlrun.envs.recorded_step import Recorder
from rlrun.envs.serial_vector_env import SerialVectorEnv
from rlrun.policies.policy import Policy
from rlrun.policies.policy_mapping import Spaces
from rlrun.sampling.agent_envs import AgentEnvs
from rlrun.sampling.bounds_check import BoundsCheck
from rlrun.sampling.episode_callbacks import METHODS, EpisodeCallbacks
from rlrun.sampling.episode_replay import warn_of_length
from rlrun.sampling.episodes import EndlessPlan, EpisodeRecord, Plan
from rlrun.sampling.policy_actor import PolicyActor
from rlrun.sampling.postprocessing import Postprocessing, only_agent
from rlrun.sampling.runner_connectors import RunnerConnectors
from rlrun.sampling.runner_environments import RunnerEnvironments
from rlrun.sampling.runner_messages import (
    RunnerSpec,
    SampleReply,
    SampleRequest,
    for_policy,
    lone_request,
    policy_numbers,
    tell_exploration,
)
from rlrun.sampling.sampling_loop import SamplingLoop, SlotEnvs

_Function = TypeVar("_Function", bound=Callable[..., Any])


def names_runner(function: _Function) -> _Function:
    """Give errors of environments in a function the role and index of the runner."""

    @wraps(function)
    def call(runner: Any, *arguments: Any, **settings: Any) -> Any:
        try:
            return function(runner, *arguments, **settings)
        except EnvError as error:
            error.role, error.runner_index = runner.role, runner.runner_index
            raise

    return cast(_Function, call)


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

    old_names = MappingProxyType({"policy_map": "use `policies`"})

    @names_runner
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
            remote=runner_index > 0 or spec.settings.remote_worker_envs,
            recreated_worker=recreated,
            training=role is Role.TRAIN,
        )
        self._callbacks = _callbacks_by_method(spec)
        shown = self._callbacks["on_sub_environment_created"]
        self._environments = RunnerEnvironments(
            spec,
            self._context,
            render_mode=render_mode,
            created=self._show_sub_env if shown else None,
        )
        self.envs: Any = self._environments.envs
        with ExitStack() as failed:
            failed.callback(self.stop)
            for callbacks in self._callbacks["on_environment_created"]:
                callbacks.on_environment_created(self, self.envs, self._context)
            self._prepare_sampling()
            failed.pop_all()

    def _show_sub_env(self, env_index: int, env: Any) -> None:
        context = self._context.for_sub_env(env_index)
        for callbacks in self._callbacks["on_sub_environment_created"]:
            callbacks.on_sub_environment_created(self, env, context, env_index)

    def _prepare_sampling(self) -> None:
        """Make the slots, their policies and the loop, and begin to count fragments."""
        spec = self.spec
        self._settings: dict[str, PolicySettings | None] = {}
        self._policy_numbers: dict[str, int] = {}
        self.actors: dict[str, PolicyActor] = {}
        self.policies: dict[str, Policy] = {}
        plan = EndlessPlan(spec.seed, self.role, self.runner_index)
        self._watch = self.episode_callbacks()
        self._slot_envs = self.slot_envs(plan, recorder=self._watch)
        self._loop = SamplingLoop(self._slot_envs, self.actors)
        self.postprocess = Postprocessing({}, self._callbacks["on_postprocess_trajectory"], self)
        several = spec.multi_agent
        self.set_policies({DEFAULT_POLICY_ID: None} if several is None else several.policies)
        self.weights_version = -1
        self._next_fragment = 0
        self._unfinished = False  # whether an exception has ended a fragment in the middle
        self._warned_of_length = self.runner_index > 1  # that an episode is too long to be repeated
        self._bounds: BoundsCheck | None = None
        if spec.settings.observation_check_interval and not spec.settings.disable_env_checking:
            self._bounds = BoundsCheck(spec.settings, self._slot_envs, self.policy_spaces)

    def slot_envs(
        self, plan: Plan, *, collects: bool = True, recorder: Recorder | None = None
    ) -> SlotEnvs:
        """This runner's environments as slots of policies, with the episodes of a plan.

        Args:
            collects: whether fragments are collected; if not, as in evaluation, no horizon is soft.
            recorder: called with each step.
        """
        return self._environments.as_slots(plan, collects=collects, recorder=recorder)

    def episode_callbacks(self) -> EpisodeCallbacks | None:
        """What shows episodes to callbacks; None where none has a method for them."""
        shown_to = {name: found for name in METHODS if (found := self._callbacks[name])}
        return EpisodeCallbacks(shown_to, self) if shown_to else None

    def foreach_env(self, function: Callable[[Any], Any]) -> list[Any]:
        """``function(env)`` of each sub-environment, in the process in which it is.

        Raises:
            TypeError: the environment is a vector, whose sub-environments are no objects.
        """
        if not isinstance(self.envs, SubEnvs | SerialVectorEnv):
            raise TypeError(f"{self.spec.env.use} is one vector, which hides its sub-environments")
        here = (env for env in self.envs.envs)
        return [env.apply(function) if isinstance(env, EnvProxy) else function(env) for env in here]

    @classmethod
    def as_remote(cls, **options: Any) -> Any:
        """This class as a Ray actor class; ``options`` are Ray's (``num_cpus=1``, ...)."""
        import ray

        return ray.remote(**options)(cls) if options else ray.remote(cls)

    @names_runner
    def set_policies(self, policies: Mapping[str, PolicySettings | None]) -> None:
        """Have exactly these policies; those that stay keep what they have learned.

        Episodes in which an agent has a policy that is gone are given up.
        """
        if policies == self._settings and [*policies] == [*self._settings]:
            return
        spaces = self.policy_spaces(policies)
        # One may be gone though there is another of its id.
        stay = {name for name, own in self._settings.items() if (name, own) in policies.items()}
        actors = {
            name: self.actors[name] if name in stay else self._new_actor(name, own, spaces[name])
            for name, own in policies.items()
        }
        given_up = []
        if isinstance(self._slot_envs, AgentEnvs):
            given_up = self._slot_envs.set_policies(spaces, self.actors, stay)
        self.actors.clear()  # the sampling loop refers to this very dict
        self.actors.update(actors)
        self._settings, self._policy_numbers = dict(policies), policy_numbers(policies)
        self.policies = {policy_id: actor.policy for policy_id, actor in self.actors.items()}
        self.postprocess.set_policies(self.policies)
        self._perturbs = any(actor.noise.parameters for actor in self.actors.values())
        if isinstance(self._slot_envs, AgentEnvs):
            self._slot_envs.begin_again(given_up, self.actors)

    def policy_spaces(
        self, policies: Mapping[str, PolicySettings | None] | None = None
    ) -> dict[str, Spaces]:
        """The environment's spaces for each of these policies, or of the present ones."""
        return self._environments.policy_spaces(self._settings if policies is None else policies)

    def _new_actor(
        self, policy_id: str, settings: PolicySettings | None, spaces: Spaces
    ) -> PolicyActor:
        spec = self.spec
        key: tuple[int, ...] = self.role, self.runner_index
        if settings is not None:
            spec, key = for_policy(spec, policy_id, settings), (*key, policy_key(policy_id))
        slots = self.num_envs * self._environments.agents_per_env
        connectors = RunnerConnectors(spec, *spaces, num_slots=slots, key=key, policy=settings)
        return self.make_actor(connectors)

    def make_actor(self, connectors: RunnerConnectors, **settings: Any) -> PolicyActor:
        """An actor of a policy between these connectors; ``settings`` are `PolicyActor`'s."""
        environments = self._environments
        return PolicyActor(
            connectors,
            self.spec.settings,
            num_slots=self.num_envs if environments.lock_step else None,
            every_step_counts=not environments.lock_step or self.envs.every_step_counts,
            num_agents=environments.agents_per_env,
            **{"explore": self.spec.settings.explore, **settings},
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
                actor.connectors.forget_custom()
        for policy_id, state in (connector_state or {}).items():
            if policy_id in self.actors:
                self.actors[policy_id].connectors.set_state(state)

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

    @names_runner
    def sample_fragment(self, request: SampleRequest, weights: Any = None) -> SampleReply:
        """Collect exactly ``request.length * B`` env steps.

        Args:
            weights: the policies' weights, taken over if their version is new.
        """
        if self._unfinished:
            self._begin_afresh()
        started, loop, envs = perf_counter(), self._loop, self._slot_envs
        lock_step = self._environments.lock_step
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
            policy_numbers=self._policy_numbers,
            batches=batches,
            env_steps=env_steps,
            agent_steps=sum(len(one) for one in batches.policy_batches.values()),
            vector_steps=vector_steps,
            episodes=envs.episodes.records if lock_step else self._finished_episodes(),
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
        envs, together = self._slot_envs, self._environments.lock_step
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

    def _end_perturbation(self) -> None:
        """Let policies have their own weights again."""
        renew = any(record.env_index == 0 for record in self._slot_envs.episodes.records)
        for actor in self.actors.values():
            if actor.noise.parameters is not None:
                actor.noise.parameters.end_fragment(renew=renew)

    def _build(self, env_steps: int) -> MultiAgentBatch:
        """The policies' batches, postprocessed, without what learning does not need."""
        envs, ending = self._slot_envs, self._callbacks["on_sample_end"]
        plain = self.postprocess.does_nothing and not ending
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
        if ending:
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
        for callbacks in self._callbacks["on_sample_end"]:
            callbacks.on_sample_end(self, samples.unwrapped())
            now = {policy_id: len(batch) for policy_id, batch in samples.policy_batches.items()}
            try:
                samples.check_valid()
                if now != rows:
                    raise ValueError(f"{now} rows by policy are left of {rows}")
            except ValueError as error:
                name = f"{type(callbacks).__name__}.on_sample_end"
                raise ValueError(f"{name}: {error}; the number of rows must stay") from None

    @names_runner
    def get_state(self) -> dict[str, Any]:
        """Where the environments stand; enough to go on in another process.

        Plain numbers and arrays.
        """
        if self._unfinished:
            self._begin_afresh()
        watched = {} if self._watch is None else {"live_episodes": self._watch.get_state()}
        return {
            **watched,
            "rebuilder": self._environments.rebuilder.get_state(),
            "next_fragment": self._next_fragment,
            "batches": self._kind_of_batches(),
            "policies": {name: actor.get_state() for name, actor in self.actors.items()},
            "numbers": self._policy_numbers,
            **self._slot_envs.get_state(self.actors),
        }

    def _kind_of_batches(self) -> dict[str, str]:
        """The settings that decide which rows of running episodes are kept, and in what form."""
        settings = self.spec.settings
        collector = settings.sample_collector or DEFAULT_COLLECTOR
        return {"batch_mode": settings.batch_mode, "sample_collector": collector}

    @names_runner
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where the runner of a state stood; see `LockStepEnvs` and `AgentEnvs`.

        Raises:
            ValueError: that runner kept other rows of running episodes than this one needs.
        """
        own = self._kind_of_batches()
        for name, there in state.get("batches", own).items():  # older checkpoints lack it
            if there not in (own[name], "complete_episodes"):  # which keeps all rows
                raise ValueError(f"env_runners.{name} must be {there}, not {own[name]}")
        if self._unfinished or self._slot_envs.started:
            self._begin_afresh()
        own_numbers, present = self._policy_numbers, self._settings
        numbers = state.get("numbers", own_numbers)  # older checkpoints lack it
        policies = {
            name: of_policy
            for name, of_policy in state["policies"].items()
            if name in present and numbers.get(name) == own_numbers[name]
        }
        # Those that came after the state come again, as new ones.
        self.set_policies({name: present[name] for name in present if name in policies})
        self.set_policies(present)
        self._next_fragment = int(state["next_fragment"])
        self.weights_version = -1  # weights of another run may have the same number
        # Environments may raise in what follows.
        self._environments.rebuilder.set_state(state["rebuilder"])
        self._slot_envs.set_state(state, self.actors, policies)
        if self._watch is not None:
            self._watch.set_state(state.get("live_episodes", ()))

    def ping(self) -> int:
        """Answer a health probe."""
        return self.runner_index

    def stop(self) -> None:
        """Close the environments."""
        self._environments.close()


def _callbacks_by_method(spec: RunnerSpec) -> defaultdict[str, list[Any]]:
    """Instances of the spec's callbacks, by the name of each method that their class defines."""
    by_method = defaultdict(list)
    for given in spec.callbacks:
        callbacks = import_object(given.spec.use)(**given.spec.arguments())
        for method in given.methods:
            by_method[method].append(callbacks)
    return by_method
