"""MultiAgentLoop: steps multi-agent environments together, and reads what their dicts say.

Owns who takes part in which episode, whose reward is whose, and what is wrong with dicts that
disagree. What an agent does and remembers is its policy's (`policy_actor`); what is made of
episodes that end is the caller's.

Rewards of an agent that is silent add up and are credited to its last action, once it is heard of
again or leaves. What comes with an agent's first observation, or before, rewards no action of its
own: it counts nowhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

from rlrun.envs.errors import EnvError, EnvPhase
from rlrun.envs.multi_agent_env import ALL, Dicts
from rlrun.policies.policy_mapping import (
    AgentMapping,
    EpisodeStart,
    MappingError,
    require_spaces,
)
from rlrun.sampling.agent_play import AgentFault, AgentPlay, Lane
from rlrun.sampling.agents_horizon import AgentsHorizon
from rlrun.sampling.policy_actor import PolicyActor
from rlrun.sampling.seeding import mapping_rng

FlaggedDicts = tuple[
    Mapping[Any, Any],
    Mapping[Any, float],
    Mapping[Any, bool],
    Mapping[Any, bool],
    Mapping[Any, Any],
]
"""What a step returned, with the flags that a horizon makes of it."""

_MOST_SILENT_STEPS = 1000  # env steps in a row in which nobody acts
_MOST_RESET_TRIES = 10  # of an environment that raises whenever it is reset

_FOUR_DICTS = (dict,) * 4
_BACK = "it has an observation after it has left"

_log = logging.getLogger(__name__)


class MultiAgentLoop:
    """B lanes, whose agents act through the policies' actors.

    Args:
        envs: one for each lane.
        actors: by policy id; may change while no step is being made.
        on_end: called with a lane whose episode is over; the next one has not begun.
        begin: called with a lane to choose its next episode: sets `seed`, `reset_seed` and
            `episode_id`; False leaves the lane idle, and it must not be stepped any more.
        rebuild: makes a lane's environment again after it raised; None lets it raise.

    Attributes:
        horizon: what becomes of the flags of each step; None leaves them alone.
    """

    def __init__(
        self,
        envs: Sequence[Any],
        actors: dict[str, PolicyActor],
        mapping: AgentMapping,
        env_id: str,
        *,
        on_end: Callable[[Lane], None],
        begin: Callable[[Lane], bool],
        rebuild: Callable[[int], Any] | None = None,
        runner_index: int = 0,
    ) -> None:
        self.lanes = [Lane(index, env) for index, env in enumerate(envs)]
        self.actors, self.mapping = actors, mapping
        self.failed: list[Lane] = []
        """Lanes whose episode was given up in the last step, since their environment raised."""
        self._policy_s = self._env_s = 0.0
        self._env_id, self._runner_index = env_id, runner_index
        self._on_end, self._begin, self._rebuild = on_end, begin, rebuild
        self.horizon: AgentsHorizon | None = None

    def start(self, lane: Lane, observations: Mapping[Any, Any] | None = None) -> None:
        """Begin the lane's next episode, with a reset or with the observations of one before."""
        lane.agents, lane.actions = {}, {}
        lane.goes_on = observations is not None
        if not self._begin(lane):
            return
        lane.start = EpisodeStart(lane.seed, tuple(self.actors), mapping_rng(lane.seed))
        lane.step, lane.total, lane.silent = 0, 0.0, 0
        first = self.reset(lane) if observations is None else observations
        for agent_id, observation in first.items():
            self._join(lane, agent_id, observation)

    def reset(self, lane: Lane) -> Mapping[Any, Any]:
        """Reset the lane's environment with its seed; the first observations, by agent."""
        tries = _MOST_RESET_TRIES if self._rebuild is not None else 1
        while True:
            tries -= 1
            try:
                observations, _ = lane.env.reset(seed=lane.reset_seed)
            except Exception as error:
                if not tries:
                    raise self.raised(error, lane, "reset") from None
                self._build_again(lane, error)
                continue
            if isinstance(observations, Mapping):
                return observations
            reason = "reset() must return a dict of observations by agent, and one of infos"
            raise self._error(lane, "reset", reason)

    def _build_again(self, lane: Lane, error: Exception) -> None:
        assert self._rebuild is not None
        _log.warning("%s is built again in sub-env %d: %r", self._env_id, lane.index, error)
        lane.env = self._rebuild(lane.index)

    def step(self, lanes: Sequence[Lane] | None = None) -> None:
        """Everybody who waits acts, and hears what came of it; in these lanes only, or in all."""
        started = perf_counter()
        for actor in self.actors.values():
            actor.act(lanes)
        acted = perf_counter()
        came = self._step_envs(self.lanes if lanes is None else lanes)
        self._credit(came)
        self._tell(came)
        self._policy_s += acted - started
        self._env_s += perf_counter() - acted
        self.hear()

    def _step_envs(self, lanes: Sequence[Lane]) -> list[tuple[Lane, Dicts]]:
        """What the environments of the lanes say, but for those that raised."""
        came: list[tuple[Lane, Dicts]] = []
        self.failed = []
        for lane in lanes:
            actions, lane.actions = lane.actions, {}
            lane.silent = 0 if actions else lane.silent + 1
            try:
                news = lane.env.step(actions)
            except Exception as error:
                if self._rebuild is None:
                    raise self.raised(error, lane, "step") from None
                self._build_again(lane, error)
                self.failed.append(lane)
                continue
            came.append((lane, news))
        return came

    def lap(self) -> tuple[float, float]:
        """Seconds that policies, and environments, have taken since the last call."""
        seconds = self._policy_s, self._env_s
        self._policy_s = self._env_s = 0.0
        return seconds

    def hear(self) -> None:
        """Let the policies take in what was said to their agents."""
        for actor in self.actors.values():
            try:
                actor.hear()
            except AgentFault as fault:
                raise self._fault(fault.agent, fault.reason, fault.step) from None

    def give_up(self, lane: Lane) -> None:
        """Forget the lane's episode and begin another one."""
        for actor in self.actors.values():
            mine = [agent for agent in lane.agents.values() if agent.actor is actor]
            actor.drop(mine, lane.index, lane.episode_id)
        self.start(lane)

    def start_afresh(self, lane: Lane) -> None:
        """Give up the episode of a lane that could not be brought back to where it was."""
        _log.warning(
            "%s, sub-env %d of runner %d: replaying the episode's actions led to other "
            "observations, it starts a fresh episode",
            self._env_id,
            lane.index,
            self._runner_index,
        )
        self.give_up(lane)

    # -- what the dicts say --------------------------------------------------------------------

    def _credit(self, came: list[tuple[Lane, Dicts]]) -> None:
        """Rewards go to whoever has acted."""
        for lane, news in came:
            # Every step of a lane comes here, so nothing of one's own is called.
            if not (
                isinstance(news, tuple | list)
                and len(news) == 5
                and all(map(isinstance, news[:4], _FOUR_DICTS))
            ):
                dicts = "observations, rewards, terminateds, truncateds and infos"
                reason = f"step() must return five dicts by agent: {dicts}"
                raise self._error(lane, "step", reason)
            for agent_id, reward in news[1].items():
                agent = lane.agents.get(agent_id)
                if agent is None:
                    continue  # it has not acted yet
                if agent.seat >= 0:
                    agent.credit += reward
                    agent.total += reward
                    lane.total += reward
                elif reward:
                    raise self._fault(agent, f"it is rewarded with {reward} after it has left")

    def _tell(self, came: list[tuple[Lane, Dicts]]) -> None:
        """Observations go to whoever stays; who leaves, and episodes that end, come after."""
        for lane, dicts in came:
            lane.step += 1
            agents, terminateds, truncateds = lane.agents, dicts[2], dicts[3]
            staying: Mapping[Any, Any] = dicts[0]
            if self.horizon is not None:
                staying = self._limited(lane, dicts)
            elif True in terminateds.values() or True in truncateds.values():
                staying = self._let_go(lane, dicts)
            for agent_id, observation in staying.items():
                agent = agents.get(agent_id)
                if agent is None:
                    self._join(lane, agent_id, observation)
                    continue
                if agent.seat < 0:
                    raise self._fault(agent, _BACK, lane.step - 1)
                news = agent.actor.news
                news.staying.append(agent)
                news.seats.append(agent.seat)
                news.observations.append(observation)
                news.steps.append(lane.step)
                if agent.actor.wants_infos:
                    news.infos.append(dicts[4].get(agent_id, {}))
            if lane.silent > _MOST_SILENT_STEPS:
                reason = f"no agent has acted for {lane.silent} steps; such an episode must end"
                raise self._error(lane, "step", reason)

    def _limited(self, lane: Lane, news: Dicts) -> Mapping[Any, Any]:
        """Observations of those who stay, after the others have been let go at the horizon, too."""
        assert self.horizon is not None
        terminateds, truncateds, passed = self.horizon.flags(lane.step, news[2], news[3])
        if passed or True in terminateds.values() or True in truncateds.values():
            limited = news[0], news[1], terminateds, truncateds, news[4]
            return self._let_go(lane, limited, passed=passed)
        return news[0]

    def _join(self, lane: Lane, agent_id: Any, observation: Any) -> None:
        assert lane.start is not None
        phase: EnvPhase = "step" if lane.step else "reset"
        try:
            policy_id = self.mapping.policy_of(agent_id, lane.start)
            actor = self.actors[policy_id]
            env = lane.env
            if agent_id not in env.possible_agents:
                raise MappingError(f"agent {agent_id!r} is none of the env's possible agents")
            spaces = env.observation_spaces[agent_id], env.action_spaces[agent_id]
            require_spaces(agent_id, policy_id, spaces, actor.spaces)
        except MappingError as error:
            raise self._error(lane, phase, str(error), lane.step - 1) from None
        agent = AgentPlay(agent_id, len(lane.agents), lane, actor, policy_id)
        lane.agents[agent_id] = agent
        actor.seat(agent)
        news = actor.news
        news.staying.append(agent)
        news.seats.append(agent.seat)
        news.observations.append(observation)
        news.steps.append(lane.step)
        if actor.wants_infos:
            news.infos.append({})  # of a transition, and who joins has none

    def _let_go(self, lane: Lane, news: FlaggedDicts, *, passed: bool = False) -> Mapping[Any, Any]:
        """Agents leave; returns the observations of the others, who stay.

        Args:
            passed: a soft horizon; everybody leaves, and who has an observation joins once more.
        """
        observations, _, terminateds, truncateds, infos = news
        everybody = bool(terminateds.get(ALL, False)), bool(truncateds.get(ALL, False))
        named = {name for flags in (terminateds, truncateds) for name in flags if flags[name]}
        over = any(everybody)
        for agent_id, agent in lane.agents.items():
            if agent.seat < 0:
                if agent_id in observations:
                    raise self._fault(agent, _BACK, lane.step - 1)
                continue
            if not (over or passed or agent_id in named):
                continue
            own = bool(terminateds.get(agent_id, False)), bool(truncateds.get(agent_id, False))
            # What is said of everybody holds for those of whom nothing else is said.
            terminated, truncated = own if any(own) else everybody
            heard = agent.actor.news
            heard.leaving.append(agent)
            heard.last_observations.append(observations.get(agent_id))
            heard.flags.append((terminated, truncated))
            heard.last_steps.append(lane.step)
            if agent.actor.wants_infos:
                heard.last_infos.append(infos.get(agent_id, {}))
        if over:
            self._end(lane, terminated=everybody[0])
            return {}
        staying = {name: seen for name, seen in observations.items() if name not in named}
        if passed:
            self._end(lane, terminated=False, go_on_with=staying)
            return {}
        return staying

    def _end(
        self, lane: Lane, *, terminated: bool, go_on_with: Mapping[Any, Any] | None = None
    ) -> None:
        if not lane.agents and not lane.goes_on:
            reason = "the episode ended before any agent had an observation"
            raise self._error(lane, "step", reason, lane.step - 1)
        lane.terminated, lane.goes_on = terminated, go_on_with is not None
        self._on_end(lane)
        # Whoever leaves is heard of first: the agents of the next episode take other seats.
        self.start(lane, go_on_with)

    # -- errors --------------------------------------------------------------------------------

    def _fault(self, agent: AgentPlay, reason: str, step: int | None = None) -> EnvError:
        reason = f"agent {agent.id!r} of policy {agent.policy_id!r}: {reason}"
        return self._error(agent.lane, "observation", reason, step)

    def _error(self, lane: Lane, phase: EnvPhase, reason: str, step: int | None = None) -> EnvError:
        if step is None:
            step = -1 if phase == "reset" else lane.step
        where: dict[str, Any] = {
            "runner_index": self._runner_index,
            "lane": lane.index,
            "env_step": step,
        }
        return EnvError(self._env_id, phase, reason, **where)

    def raised(self, error: Exception, lane: Lane, phase: EnvPhase) -> EnvError:
        """What to raise for what the lane's environment raised."""
        step = -1 if phase == "reset" else lane.step
        where = {"runner_index": self._runner_index, "lane": lane.index, "env_step": step}
        return EnvError.from_exception(error, self._env_id, phase, **where)
