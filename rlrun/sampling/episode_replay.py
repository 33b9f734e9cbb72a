"""RecordedEpisode and AgentReplay: running episodes are brought back by repeating their actions.

An environment is a function of the seed that it was reset with and of the actions since then, so
these are what a state holds of it. That is one episode, but at soft horizons, where one goes over
into the next without a reset: then it is several, of which the last is running.

Owns both for several agents, where with one agent `replay_actions` does it, and what is logged in
both cases. Must not know how actions are chosen, nor which episodes are brought back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlrun.data.column_data import Array
from rlrun.data.seeding import mapping_rng
from rlrun.envs.agent_slots import PlannedEpisode, SubEnv
from rlrun.envs.errors import RAISED
from rlrun.envs.multi_agent_vector_env import MultiAgentVectorEnv
from rlrun.sampling.episodes import Episodes, Plan
from rlrun.sampling.policy_actor import PolicyActor

Observations = dict[tuple[int, int], Any]
"""Raw observations by sub-environment and agent index."""

_WORTH_TELLING = 10_000  # env steps of one sub-environment

_log = logging.getLogger(__name__)


@dataclass
class RecordedEpisode:
    """What it takes to repeat an episode, or the part of one between soft horizons."""

    number: int
    episode_id: int
    before: int
    """Env steps from the reset to its beginning."""
    steps: int = 0
    known: list[str] = field(default_factory=list)
    """Ids of the policies that there were when it began."""
    mapping_rng: Mapping[str, Any] | None = None
    """State of the random numbers for the agents that join next; older checkpoints lack it."""
    policies: list[str] = field(default_factory=list)
    """Policy id of each agent, by index."""
    actions: dict[int, list[tuple[Array, Array]]] = field(default_factory=dict)
    """Agent index -> env steps of its actions, and these as connectors sent them."""

    @property
    def since_reset(self) -> int:
        """Env steps from the reset to its end, or so far."""
        return self.before + self.steps

    def recorded(self) -> dict[int, tuple[Array, Array]]:
        """The actions, each agent's joined."""
        for agent, parts in self.actions.items():
            steps, actions = (np.concatenate(part) for part in zip(*parts, strict=True))
            self.actions[agent] = [(steps, actions)]
        return {agent: parts[0] for agent, parts in self.actions.items()}

    def get_state(self) -> dict[str, Any]:
        """Plain values and arrays, without the id."""
        actions = {
            str(agent): {"steps": steps, "actions": taken}
            for agent, (steps, taken) in self.recorded().items()
        }
        state = {**vars(self), "actions": actions}
        del state["episode_id"]
        return state

    @classmethod
    def from_state(cls, state: Mapping[str, Any], episode_id: int) -> RecordedEpisode:
        """The episode of `get_state`, with its id."""
        actions = {
            int(agent): [(np.asarray(part["steps"]), np.asarray(part["actions"]))]
            for agent, part in state["actions"].items()
        }
        fields = {"before": 0, **state}  # older checkpoints lack it
        return cls(**{**fields, "episode_id": episode_id, "actions": actions})


class AgentReplay:
    """Brings environments with several agents back to where their running episodes were.

    Args:
        plan: the seeds of their episodes.
    """

    def __init__(self, env: MultiAgentVectorEnv, plan: Plan) -> None:
        self._env, self._plan = env, plan

    def repeat(
        self, sub: SubEnv, recorded: Sequence[RecordedEpisode], actors: Mapping[str, PolicyActor]
    ) -> Observations:
        """Bring an environment to where it was; the last observations of agents that act next."""
        observations: Any = self._env.reset(sub)
        for episode in recorded:
            self._begin(sub, episode)
            observations = self._repeat_episode(sub, episode, observations, actors)
            if observations is None:
                sub.agents = {}
                return {}
        found = ((sub.agents.get(name), raw) for name, raw in observations.items())
        return {(sub.index, agent.index): raw for agent, raw in found if agent is not None}

    def _repeat_episode(
        self,
        sub: SubEnv,
        episode: RecordedEpisode,
        observations: Mapping[Any, Any],
        actors: Mapping[str, PolicyActor],
    ) -> Mapping[Any, Any] | None:
        """Replay one episode that begins with these observations; returns the last ones.

        None if the environment raised, and was built again.
        """
        self._rejoin(sub, observations, episode.policies)
        converted = {}
        for index, (at, actions) in sorted(episode.recorded().items()):
            policy_id = episode.policies[index]
            each = self._env.policies[policy_id].each(actors[policy_id].to_env(actions), len(at))
            converted[index] = dict(zip(at.tolist(), each, strict=True))
        ids = list(sub.agents)
        for step in range(episode.steps):
            due = {
                ids[index]: taken[step]
                for index, taken in converted.items()
                if step in taken and index < len(ids)
            }
            sub.step = step
            try:
                observations, _, *flagged, _ = self._env.envs.envs[sub.index].step(due)
            except RAISED as error:
                self._env.build_again_or_raise(sub, error, "step")
                return None
            gone = {name for flags in flagged for name in flags if flags[name]}
            observations = {name: raw for name, raw in observations.items() if name not in gone}
            self._rejoin(sub, observations, episode.policies)
            ids = list(sub.agents)
        return observations

    def set_state(self, sub: SubEnv, episode: RecordedEpisode, state: Mapping[str, Any]) -> None:
        """Bring an environment back by its own state, with the agents that it had."""
        self._env.reset(sub)
        try:
            self._env.envs.set_state(sub.index, state["own"])
        except RAISED as error:
            raise self._env.raised(error, sub, "set_state") from None
        self._begin(sub, episode)
        possible = self._env.envs.envs[sub.index].possible_agents
        names = [possible[position] for position in np.asarray(state["positions"]).tolist()]
        self._rejoin(sub, dict.fromkeys(names), episode.policies)

    def _begin(self, sub: SubEnv, episode: RecordedEpisode) -> None:
        """Let an episode that has run before begin once more, still without agents."""
        seed = self._plan.seed(sub.index, episode.number)
        rng = mapping_rng(seed)
        if episode.mapping_rng is not None:
            rng.bit_generator.state = episode.mapping_rng
        planned = PlannedEpisode(episode.episode_id, seed, seed, rng)
        sub.agents, sub.episode = {}, planned
        self._env.set_start(sub, planned, tuple(episode.known))

    def _rejoin(self, sub: SubEnv, observations: Mapping[Any, Any], policies: list[str]) -> None:
        """Agents join in the order in which they did."""
        for agent_id in observations:
            index = len(sub.agents)
            if agent_id not in sub.agents and index < len(policies):
                self._env.new_agent(sub, agent_id, policies[index])


def has_policies(recorded: Iterable[RecordedEpisode], actors: Mapping[str, Any]) -> bool:
    """Whether no agent's policy is gone."""
    return all(policy_id in actors for episode in recorded for policy_id in episode.policies)


def warn_of_length(env_id: str, longest: int, limit: int) -> None:
    """Warn of a running episode that has become too long to be brought back."""
    _log.warning(
        "%s: an episode has %s env steps. A resumed run, or a restarted env runner, will start it "
        "again, as it repeats at most fault_tolerance.max_replayed_env_steps=%d. An env with "
        "get_state() and set_state() is restored instead",
        env_id,
        f"{longest:,}",
        limit,
    )


def log_replay(
    episodes: Episodes,
    diverged: Iterable[int],
    lengths: Sequence[int] | Array,
    env_id: str,
    runner_index: int,
) -> None:
    """Say what repeating actions has cost, and which sub-environments begin afresh, and why.

    Args:
        diverged: sub-environments that begin afresh.
        lengths: env steps of each since its reset.
    """
    limit = episodes.max_replayed
    longest = max((int(length) for length in lengths if length <= limit), default=0)
    if longest > _WORTH_TELLING:
        message = "%s: up to %s env steps of each running episode were repeated; get_state() and "
        _log.warning(message + "set_state() would spare that", env_id, f"{longest:,}")
    for env_index in diverged:
        reason = "repeating the episode's actions led to another observation"
        reason += " (an env that a callback changes needs get_state() and set_state())"
        if lengths[env_index] > limit:
            reason = f"its episode has {lengths[env_index]:,} env steps, too many to repeat"
            reason += f" (fault_tolerance.max_replayed_env_steps={limit})"
        message = "%s, sub-env %d of runner %d: %s, it starts a fresh episode"
        _log.warning(message, env_id, env_index, runner_index, reason)
