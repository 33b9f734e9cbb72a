"""MultiAgentEnvRunner: environments with several agents, and policies, turn into sample batches.

It answers the same messages as `EnvRunner`. Owns fragments and their exact length, the runner's
state, and the policies that there are; the steps themselves are `MultiAgentLoop`'s.

    B  lanes: the runner's sub-environments
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

from rlrun.config.policies import PolicySettings
from rlrun.data.sample_batch import MultiAgentBatch, SampleBatch
from rlrun.envs.env import EnvContext
from rlrun.envs.errors import EnvError
from rlrun.envs.multi_agent_env import SubEnvs, make_multi_agent_env
from rlrun.policies.policy import Policy
from rlrun.policies.policy_mapping import AgentMapping, MappingError, Spaces, policy_spaces
from rlrun.sampling.agent_pieces import AgentPieces
from rlrun.sampling.agent_play import Lane
from rlrun.sampling.agents_horizon import make_agents_horizon, raise_time_limits
from rlrun.sampling.episodes import EpisodeRecord
from rlrun.sampling.lane_games import LaneGames
from rlrun.sampling.lane_restorer import LaneRestorer
from rlrun.sampling.multi_agent_loop import MultiAgentLoop
from rlrun.sampling.policy_actor import PolicyActor
from rlrun.sampling.postprocessing import Postprocessing, make_postprocessors
from rlrun.sampling.runner_connectors import RunnerConnectors
from rlrun.sampling.runner_messages import (
    MultiAgentSpec,
    RunnerSpec,
    SampleReply,
    SampleRequest,
    for_policy,
    lone_request,
    make_collector,
    tell_exploration,
)
from rlrun.sampling.seeding import Role, fragment_noise, policy_key


class MultiAgentEnvRunner:
    """Steps several copies of a multi-agent environment with several policies.

    Standalone, one fragment::

        policies = {"p": PolicySettings(ModelConfig(), TrainingConfig())}
        spec = RunnerSpec(EnvSpec(use="..."), multi_agent=MultiAgentSpec(policies))
        batch = MultiAgentEnvRunner(spec).sample()

    Args:
        runner_index, role, num_env_runners, recreated, render_mode: as `EnvRunner` has them.

    Raises:
        EnvError: an environment cannot be built, or its agents do not fit the policies.
    """

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
        assert spec.multi_agent is not None
        self.spec, self.runner_index, self.role = spec, runner_index, role
        self.multi_agent: MultiAgentSpec = spec.multi_agent
        self.num_lanes = spec.settings.num_envs_per_env_runner
        self._context = EnvContext(
            spec.env.kwargs,
            worker_index=runner_index,
            num_workers=num_env_runners,
            recreated_worker=recreated,
            training=role is Role.TRAIN,
        )
        self._render_mode = render_mode
        self.envs = SubEnvs([self.make_env(lane) for lane in range(self.num_lanes)])
        self.mapping = AgentMapping(self.multi_agent.agents)
        self.settings: dict[str, PolicySettings] = {}
        self.actors: dict[str, PolicyActor] = {}
        self._postprocess = Postprocessing({}, make_postprocessors(spec.postprocessors), self)
        self._agents: dict[int, list[Any]] = {}  # episode that has ended -> names, by index
        self.weights_version = -1
        self.games = LaneGames((spec.seed, role, runner_index), self.num_lanes)
        self.loop = self.make_loop(on_end=self._end, begin=self._begin)
        self._restorer = LaneRestorer(self.loop, self.games)
        self.set_policies(self.multi_agent.policies)
        self._carried = [0] * self.num_lanes  # env steps of it that earlier fragments counted
        self._started = False
        self._records: list[EpisodeRecord] = []
        self._completed = 0  # env steps of the episodes that ended in this fragment
        self._completed_agent_steps = 0
        self._next_fragment = 0
        self._faulty_episodes = 0

    def make_env(self, lane: int) -> Any:
        """Build the environment of a lane."""
        place = self._context.for_lane(lane)
        env = make_multi_agent_env(self.spec.env, place, self._render_mode)
        raise_time_limits(env, self.spec.settings)
        return env

    def make_loop(
        self,
        *,
        on_end: Callable[[Lane], None],
        begin: Callable[[Lane], bool],
        actors: dict[str, PolicyActor] | None = None,
        soft_horizon: bool = True,
    ) -> MultiAgentLoop:
        """A loop over this runner's environments.

        Args:
            soft_horizon: whether a horizon may be soft; if not, each is an end.
        """
        loop = MultiAgentLoop(
            self.envs.envs,
            self.actors if actors is None else actors,
            self.mapping,
            self.spec.env.use,
            on_end=on_end,
            begin=begin,
            rebuild=self.make_env if self.spec.restart_failed_sub_environments else None,
            runner_index=self.runner_index,
        )
        loop.horizon = make_agents_horizon(self.spec.settings, soft=soft_horizon)
        return loop

    # -- policies ------------------------------------------------------------------------------

    def set_policies(self, policies: Mapping[str, PolicySettings]) -> None:
        """Have exactly these policies; those that stay keep what they know.

        Episodes in which somebody plays a policy that is gone are given up.
        """
        if policies == self.settings:
            return
        try:
            spaces = policy_spaces(self.envs.envs[0], self.mapping, policies)
        except MappingError as error:
            where: dict[str, Any] = {"runner_index": self.runner_index}
            raise EnvError(self.spec.env.use, "constructor", str(error), **where) from None
        for policy_id, settings in policies.items():
            if policy_id not in self.actors:
                self.actors[policy_id] = self._make_actor(policy_id, settings, spaces[policy_id])
        gone = {policy_id for policy_id in self.actors if policy_id not in policies}
        for lane in self.loop.lanes:
            if any(agent.policy_id in gone for agent in lane.agents.values()):
                self.loop.give_up(lane)
        for policy_id in gone:
            del self.actors[policy_id]
        self._postprocess.policies = {name: actor.policy for name, actor in self.actors.items()}
        self.settings = dict(policies)
        self.loop.hear()

    def _make_actor(self, policy_id: str, settings: PolicySettings, spaces: Spaces) -> PolicyActor:
        spec = for_policy(self.spec, policy_id, settings)
        agents = self.envs.envs[0].possible_agents
        connectors = RunnerConnectors(
            spec,
            *spaces,
            num_lanes=self.num_lanes * len(agents),
            key=(self.role, self.runner_index, policy_key(policy_id)),
            policy=settings,
        )
        pieces = None if connectors.custom is None else AgentPieces(connectors, agents)
        collector = make_collector(spec.settings, connectors.observations.output_space, None)
        actor = PolicyActor(connectors.policy, spaces, connectors, collector, pieces)
        actor.explore = spec.settings.explore
        return actor

    def load(self, weights: Any, version: int, connector_state: Mapping[str, Any] | None) -> None:
        """Take over weights and merged connector statistics, each by policy id."""
        if weights is not None and version != self.weights_version:
            self.set_weights(weights)
        self.weights_version = version
        if self.role is Role.EVALUATION:
            for actor in self.actors.values():
                actor.forget_pieces()
        for policy_id, state in (connector_state or {}).items():
            if policy_id in self.actors:
                self.actors[policy_id].connectors.set_state(state)

    @property
    def policies(self) -> dict[str, Policy]:
        """All policies, by id."""
        return {policy_id: actor.policy for policy_id, actor in self.actors.items()}

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Weights of some policies, by id; a request may be older than a policy that came since."""
        for policy_id, values in weights.items():
            if policy_id in self.actors:
                self.actors[policy_id].policy.set_weights(values)

    def get_weights(self) -> dict[str, Any]:
        """Weights of all policies, by id."""
        return {policy_id: actor.policy.get_weights() for policy_id, actor in self.actors.items()}

    # -- episodes ------------------------------------------------------------------------------

    def _begin(self, lane: Lane) -> bool:
        self.games.begin(lane)
        self._carried[lane.index] = 0
        return True

    def _end(self, lane: Lane) -> None:
        self.games.end(lane)
        self._completed += lane.step
        self._completed_agent_steps += sum(
            agent.actor.actions_taken(agent) for agent in lane.agents.values()
        )
        self._records.append(lane.record())
        self._agents[lane.episode_id] = list(lane.agents)

    def sample(self) -> SampleBatch | MultiAgentBatch:
        """One fragment with the present weights; ``rollout_fragment_length`` steps of each lane.

        Returns:
            A MultiAgentBatch, or a SampleBatch where the default policy is the only one.
        """
        request = lone_request(self.spec.settings, self._next_fragment, self.weights_version)
        return self.sample_fragment(request).batch

    def sample_fragment(self, request: SampleRequest, weights: Any = None) -> SampleReply:
        """Collect ``request.length * B`` env steps, exactly; of agent steps at least as many.

        Args:
            weights: the policies' weights by id, taken over if their version is new.
        """
        started = perf_counter()
        if request.policies is not None:
            self.set_policies(request.policies)
        self.load(weights, request.weights_version, request.connector_state)
        first_unroll_id = (self.runner_index << 48) | (request.fragment << 16)
        for policy_id, actor in self.actors.items():
            actor.begin_fragment(request.leave_out.get(policy_id, frozenset()), first_unroll_id)
        tell_exploration(self.policies, request.exploration, self.runner_index)
        if self.spec.settings.explore:
            place = self.spec.seed, self.role, self.runner_index, request.fragment
            for policy_id, policy in self.policies.items():
                if policy.draws_for_fragments:
                    policy.begin_fragment(fragment_noise(*place, policy_key(policy_id)))
        self._next_fragment = request.fragment + 1
        if not self._started:
            self._start()
        self._records, self._completed, self._completed_agent_steps = [], 0, 0
        self._carried = [lane.step for lane in self.loop.lanes]
        env_steps, rounds = self._collect(request.length * self.num_lanes)
        if self._whole_episodes:
            env_steps = self._completed
        batch = MultiAgentBatch.wrap_as_needed(self._deliver(request), env_steps)
        policy_s, env_s = self.loop.lap()
        timings = {"policy": policy_s, "env": env_s, "other": 0.0}
        reply = SampleReply(
            runner_index=self.runner_index,
            weights_version=self.weights_version,
            batch=batch,
            env_steps=env_steps,
            agent_steps=batch.agent_steps(),
            vector_steps=rounds,
            episodes=self._records,
            connector_deltas={
                policy_id: actor.connectors.flush_deltas()
                for policy_id, actor in self.actors.items()
            },
            state=self.get_state(),
            timings_s=timings,
            longest_running_episode=max(lane.step for lane in self.loop.lanes),
            faulty_episodes=self._faulty_episodes,
        )
        timings["other"] = perf_counter() - started - policy_s - env_s
        return reply

    def _start(self) -> None:
        self._started = True
        for lane in self.loop.lanes:
            self.loop.start(lane)
        self.loop.hear()

    @property
    def _whole_episodes(self) -> bool:
        return self.spec.settings.batch_mode == "complete_episodes"

    def _collect(self, wanted: int) -> tuple[int, int]:
        """Step until there is enough; returns env steps that count, and rounds of steps."""
        loop, by_agent = self.loop, self.multi_agent.count_agent_steps
        env_steps = agent_steps = rounds = 0
        while True:
            lanes: list[Lane] | None = None
            if self._whole_episodes:
                done = self._completed_agent_steps if by_agent else self._completed
                enough = done >= wanted
            elif by_agent:
                enough = agent_steps >= wanted
            else:
                enough = env_steps >= wanted
                if wanted - env_steps < self.num_lanes:  # where episodes had to be dropped
                    lanes = loop.lanes[: wanted - env_steps]
            if enough:
                return env_steps, rounds
            if by_agent:
                agent_steps += sum(len(actor.waiting) for actor in self.actors.values())
            loop.step(lanes)
            env_steps += self.num_lanes if lanes is None else len(lanes)
            rounds += 1
            for lane in loop.failed:
                env_steps -= self._give_up(lane)

    def _give_up(self, lane: Lane) -> int:
        """Drop a lane's episode, whose environment raised; returns its env steps that counted."""
        self._faulty_episodes += 1
        counted = 1 + lane.step - self._carried[lane.index]
        self.loop.give_up(lane)
        self.loop.hear()
        return counted

    def _deliver(self, request: SampleRequest) -> dict[str, SampleBatch]:
        """The policies' batches, postprocessed, without what learning does not need."""
        running = {lane.episode_id: lane for lane in self.loop.lanes}
        plain = self._postprocess.does_nothing
        batches, leave_out = {}, {}
        for policy_id, actor in self.actors.items():
            if (taken := actor.newly_taken()) is not None:
                self.games.record(*taken)
            leave_out[policy_id] = actor.inputs.leave_out
            batch = actor.collector.build(
                leave_out[policy_id] if plain else frozenset(),
                actor.policy.fragment_columns,
                running,
            )
            if len(batch):
                batches[policy_id] = batch
        if not plain:
            batches = self._postprocess(batches, self._agent_name)
        self._agents = {}
        for policy_id, batch in batches.items():
            for name in leave_out[policy_id] & batch.keys():
                del batch[name]
            if self.runner_index > 0 and self.spec.settings.compress_observations:
                batch.compress()
        return batches

    def _agent_name(self, episode_id: int, index: int) -> Any:
        if episode_id in self._agents:
            return self._agents[episode_id][index]
        lane = next(lane for lane in self.loop.lanes if lane.episode_id == episode_id)
        return list(lane.agents)[index]

    # -- state ---------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Where the lanes stand; plain numbers and arrays, enough to go on in another process."""
        return {
            "next_fragment": self._next_fragment,
            "faulty_episodes": self._faulty_episodes,
            "started": self._started,
            "numbers": self.games.numbers,
            "lanes": self._restorer.lane_states() if self._started else [],
            "policies": self._restorer.actor_states(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where the runner that `get_state` came from stood.

        Each lane is reset with its episode's seed and replays the actions; one whose observations
        then differ is named in the log and starts a fresh episode.
        """
        self._next_fragment = int(state["next_fragment"])
        self._faulty_episodes = int(state["faulty_episodes"])
        self.weights_version = -1  # those of another run may have the same number
        self._started = bool(state["started"])
        self.games.numbers = state["numbers"]
        if not self._started:
            return
        for lane in self._restorer.set_state(state["lanes"], state["policies"]):
            self.loop.start_afresh(lane)
        self.loop.hear()

    def ping(self) -> int:
        """Answer a health probe."""
        return self.runner_index

    def stop(self) -> None:
        """Close the environments."""
        self.envs.close()
