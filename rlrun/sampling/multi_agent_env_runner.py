"""MultiAgentEnvRunner: environments with several agents, and policies, turn into sample batches.

It answers the same messages as `EnvRunner`. Owns fragments and their exact length, the runner's
state, and the policies that there are; the steps themselves are `MultiAgentLoop`'s.

    B  lanes: the runner's sub-environments
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any
from zlib import crc32

import numpy as np

from rlrun.config.policies import PolicySettings
from rlrun.config.registry import import_object
from rlrun.data.multi_agent_batch import MultiAgentBatch
from rlrun.data.sample_batch import SampleBatch
from rlrun.policies.policy import Policy
from rlrun.sampling.agent_play import AgentPlay
from rlrun.sampling.envs import EnvContext
from rlrun.sampling.episodes import LONGEST_REPLAY, EpisodeRecord
from rlrun.sampling.errors import EnvError
from rlrun.sampling.multi_agent_env import make_multi_agent_env
from rlrun.sampling.multi_agent_loop import Lane, MultiAgentLoop
from rlrun.sampling.policy_actor import PolicyActor
from rlrun.sampling.policy_mapping import AgentMapping, MappingError, Spaces, policy_spaces
from rlrun.sampling.postprocessing import Postprocessing, make_postprocessors
from rlrun.sampling.runner_connectors import RunnerConnectors
from rlrun.sampling.runner_messages import (
    MultiAgentSpec,
    RunnerSpec,
    SampleReply,
    SampleRequest,
    tell_exploration,
)
from rlrun.sampling.seeding import Role, episode_seed, fragment_noise

_log = logging.getLogger(__name__)


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
        self._postprocess: dict[str, Postprocessing] = {}
        self.weights_version = -1
        self.loop = self.make_loop(on_end=self._end, begin=self._begin)
        self.set_policies(self.multi_agent.policies)
        self._number = [-1] * self.num_lanes  # of the episode that each lane plays
        self._carried = [0] * self.num_lanes  # env steps of it that earlier fragments counted
        self._recorded: list[dict[int, list[tuple[Any, Any]]]] = [{}] * self.num_lanes
        self._started = False
        self._records: list[EpisodeRecord] = []
        self._completed = 0  # env steps of the episodes that ended in this fragment
        self._completed_agent_steps = 0
        self._next_fragment = 0
        self._faulty_episodes = 0

    def make_env(self, lane: int) -> Any:
        """Build the environment of a lane."""
        return make_multi_agent_env(self.spec.env, self._context.for_lane(lane), self._render_mode)

    def make_loop(
        self,
        *,
        on_end: Callable[[Lane], None],
        begin: Callable[[Lane], bool],
        actors: dict[str, PolicyActor] | None = None,
    ) -> MultiAgentLoop:
        """A loop over this runner's environments."""
        return MultiAgentLoop(
            self.envs.envs,
            self.actors if actors is None else actors,
            self.mapping,
            self.spec.env.use,
            on_end=on_end,
            begin=begin,
            rebuild=self.make_env if self.spec.restart_failed_sub_environments else None,
            runner_index=self.runner_index,
        )

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
                actor = self._make_actor(policy_id, settings, spaces[policy_id])
                self.actors[policy_id] = actor
                callbacks = make_postprocessors(self.spec.postprocessors)
                self._postprocess[policy_id] = Postprocessing(actor.policy, callbacks, self)
        gone = {policy_id for policy_id in self.actors if policy_id not in policies}
        for lane in self.loop.lanes:
            if any(agent.policy_id in gone for agent in lane.agents.values()):
                self.loop.give_up(lane)
        for policy_id in gone:
            del self.actors[policy_id]
        self.settings = dict(policies)
        self.loop.hear()

    def _make_actor(self, policy_id: str, settings: PolicySettings, spaces: Spaces) -> PolicyActor:
        # Each policy's rewards are discounted, and normalised, as that policy learns from them.
        spec = replace(self.spec, gamma=settings.training.gamma)
        connectors = RunnerConnectors(spec, *spaces)
        space = connectors.observations.output_space
        policy: Policy
        if settings.use is None:
            made_from = settings.like or policy_id
            factory = self.multi_agent.factories.get(made_from, spec.policy_factory)
            policy = factory(space, spaces[1], settings.model)
        else:
            policy = import_object(settings.use)(space, spaces[1], dict(settings.kwargs))
        actor = PolicyActor(policy, spaces, connectors)
        actor.explore = spec.settings.explore
        return actor

    def load(self, weights: Any, version: int, connector_state: Mapping[str, Any] | None) -> None:
        """Take over weights and merged connector statistics, each by policy id."""
        if weights is not None and version != self.weights_version:
            self.set_weights(weights)
        self.weights_version = version
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
        self._number[lane.index] += 1
        self._name_episode(lane)
        self._recorded[lane.index], self._carried[lane.index] = {}, 0
        return True

    def _name_episode(self, lane: Lane) -> None:
        number = self._number[lane.index]
        lane.seed = episode_seed(self.spec.seed, self.role, self.runner_index, lane.index, number)
        lane.episode_id = (self.runner_index << 48) | (lane.index << 32) | number

    def _end(self, lane: Lane) -> None:
        self._completed += lane.step
        self._completed_agent_steps += sum(
            agent.actor.actions_taken(agent) for agent in lane.agents.values()
        )
        self._records.append(episode_record(lane))

    def sample(self) -> SampleBatch | MultiAgentBatch:
        """One fragment with the present weights; ``rollout_fragment_length`` steps of each lane.

        Returns:
            A MultiAgentBatch, or a SampleBatch where the default policy is the only one.
        """
        length = self.spec.settings.rollout_fragment_length
        request = SampleRequest(
            self._next_fragment, 200 if length == "auto" else length, self.weights_version
        )
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
        for actor in self.actors.values():
            actor.look_at_views()
        tell_exploration(self.policies, request.exploration, self.runner_index)
        if self.spec.settings.explore:
            place = self.spec.seed, self.role, self.runner_index, request.fragment
            for policy_id, policy in self.policies.items():
                if policy.draws_for_fragments:
                    policy.begin_fragment(fragment_noise(*place, crc32(policy_id.encode())))
        self._next_fragment = request.fragment + 1
        if not self._started:
            self._start()
        self._records, self._completed, self._completed_agent_steps = [], 0, 0
        self._carried = [lane.step for lane in self.loop.lanes]
        env_steps, rounds = self._collect(request.length * self.num_lanes)
        if self._whole_episodes:
            env_steps = self._completed
        batch = MultiAgentBatch.wrap_as_needed(self._deliver(request.fragment), env_steps)
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

    def _deliver(self, fragment: int) -> dict[str, SampleBatch]:
        running = {lane.episode_id: lane.index for lane in self.loop.lanes}
        batches = {}
        for policy_id, actor in self.actors.items():
            for lane, agent, steps, actions in actor.newly_taken(running):
                self._recorded[lane].setdefault(agent, []).append((steps, actions))
            batch = actor.deliver(
                running,
                runner_index=self.runner_index,
                fragment=fragment,
                whole_episodes=self._whole_episodes,
            )
            actor.carry_over()
            if batch is not None:
                if not self._postprocess[policy_id].does_nothing:
                    batch = self._postprocess[policy_id](batch)
                if self.runner_index > 0 and self.spec.settings.compress_observations:
                    batch.compress()
                batches[policy_id] = batch
        return batches

    # -- state ---------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Where the lanes stand; plain numbers and arrays, enough to go on in another process."""
        return {
            "next_fragment": self._next_fragment,
            "started": self._started,
            "number": np.array(self._number, np.int64),
            "lanes": [self._lane_state(lane) for lane in self.loop.lanes if self._started],
            "policies": {
                policy_id: actor.get_state(self._seated(actor))
                for policy_id, actor in self.actors.items()
            },
        }

    def _seated(self, actor: PolicyActor) -> list[AgentPlay]:
        return [
            agent
            for lane in self.loop.lanes
            for agent in lane.agents.values()
            if agent.actor is actor and agent.seat >= 0
        ]

    def _lane_state(self, lane: Lane) -> dict[str, Any]:
        agents = list(lane.agents.values())
        recorded = self._recorded[lane.index]
        if lane.step > LONGEST_REPLAY:
            recorded.clear()
        for agent, parts in recorded.items():
            steps, actions = (np.concatenate(part) for part in zip(*parts, strict=True))
            recorded[agent] = [(steps, actions)]
        return {
            "step": lane.step,
            "total": lane.total,
            "silent": lane.silent,
            "known": [] if lane.start is None else list(lane.start.policies),
            "policies": [agent.policy_id for agent in agents],
            "credits": np.array([agent.credit for agent in agents], np.float64),
            "totals": np.array([agent.total for agent in agents], np.float64),
            "recorded": {
                str(agent): {"steps": parts[0][0], "actions": parts[0][1]}
                for agent, parts in recorded.items()
            },
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where the runner that `get_state` came from stood.

        Each lane is reset with its episode's seed and replays the actions; one whose observations
        then differ is named in the log and starts a fresh episode.
        """
        self._next_fragment = int(state["next_fragment"])
        self._started = bool(state["started"])
        self._number = [int(number) for number in state["number"]]
        if not self._started:
            return
        seen: dict[tuple[int, int], Any] = {}
        strayed: set[int] = set()
        for lane, lane_state in zip(self.loop.lanes, state["lanes"], strict=True):
            seen |= self._restore_lane(lane, lane_state, strayed)
        by_place = {
            (lane.index, agent.index): agent
            for lane in self.loop.lanes
            for agent in lane.agents.values()
        }
        for policy_id, actor_state in state["policies"].items():
            actor = self.actors.get(policy_id)
            if actor is None:
                continue
            actor.set_state(actor_state, lambda lane, agent: by_place[lane, agent])
            strayed |= actor.see_again(seen, actor_state["unfiltered"])
        for index in sorted(strayed):
            _log.warning(
                "%s, sub-env %d of runner %d: replaying the episode's actions led to other "
                "observations, it starts a fresh episode",
                self.spec.env.use,
                index,
                self.runner_index,
            )
            self.loop.give_up(self.loop.lanes[index])
        self.loop.hear()

    def _restore_lane(
        self, lane: Lane, state: Mapping[str, Any], strayed: set[int]
    ) -> dict[tuple[int, int], Any]:
        """Bring the lane back; what those who wait see, by lane and agent."""
        self._name_episode(lane)
        lane.step, lane.silent = int(state["step"]), int(state["silent"])
        lane.total = float(state["total"])
        policies = [str(policy_id) for policy_id in state["policies"]]
        if any(policy_id not in self.actors for policy_id in policies):
            strayed.add(lane.index)  # one of them is gone, and the episode with it
            lane.agents = {}
            self._fill_up(lane, policies, state)
            return {}
        recorded = {
            int(agent): (np.asarray(part["steps"]), np.asarray(part["actions"]))
            for agent, part in state["recorded"].items()
        }
        self._recorded[lane.index] = {agent: [part] for agent, part in recorded.items()}
        seen = self.loop.replay(lane, recorded, policies, [str(name) for name in state["known"]])
        if len(lane.agents) < len(policies):  # they did not come again
            strayed.add(lane.index)
        self._fill_up(lane, policies, state)
        return {(lane.index, index): observation for index, observation in seen.items()}

    def _fill_up(self, lane: Lane, policies: list[str], state: Mapping[str, Any]) -> None:
        """Let the lane have all agents that it had; the missing ones are of no use, but counted."""
        for index in range(len(lane.agents), len(policies)):
            actor: Any = self.actors.get(policies[index])
            nobody = AgentPlay(("gone", index), index, lane, actor, policies[index])
            lane.agents[nobody.id] = nobody
        for agent, credit, total in zip(
            lane.agents.values(), state["credits"], state["totals"], strict=True
        ):
            agent.credit, agent.total = float(credit), float(total)

    def ping(self) -> int:
        """Answer a health probe."""
        return self.runner_index

    def stop(self) -> None:
        """Close the environments."""
        self.envs.close()


class SubEnvs:
    """The runner's environments, as recorders of a rollout see them."""

    def __init__(self, envs: Sequence[Any]) -> None:
        self.envs = list(envs)

    def render(self) -> list[Any]:
        """The frames of all lanes."""
        return [env.render() for env in self.envs]

    def close(self) -> None:
        """Close them."""
        for env in self.envs:
            env.close()


def episode_record(lane: Lane) -> EpisodeRecord:
    """The episode that has just ended in the lane."""
    return EpisodeRecord(
        episode_id=lane.episode_id,
        lane=lane.index,
        seed=lane.seed,
        episode_return=lane.total,
        length=lane.step,
        agents=tuple((str(a.id), a.policy_id, a.total) for a in lane.agents.values()),
    )
