"""CentralState: what all agents observe, beside each agent's own observation.

It is meant for value functions that see more than policies do (`model.privileged`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.data.nested import OBSERVATION, has_action_mask, space_without_mask, without_mask
from rlrun.envs.env_state import give_state, offers_state, take_state
from rlrun.envs.horizon import ALL
from rlrun.envs.multi_agent_env import Agent, Dicts, FirstDicts, MultiAgentEnv
from rlrun.envs.pettingzoo_envs import adapted

STATE = "state"
"""Key of the state in observations."""


class CentralState(MultiAgentEnv):
    """A wrapper: observations become Dicts with a further entry ``state``, equal for all agents.

    The state is the environment's own, if it has ``state()`` and a ``state_space`` as PettingZoo's
    may have. Otherwise it is the latest observation of every possible agent, one after the other,
    without action masks: zeros for an agent that has not joined yet or has left. An observation
    that is no Dict becomes the entry ``observation``.

    Raises:
        ValueError: observations have an entry ``state`` already.
    """

    def __init__(self, env: Any) -> None:
        self.env = env = adapted(env)
        self.possible_agents, self.action_spaces = env.possible_agents, env.action_spaces
        self.metadata = getattr(env, "metadata", {})
        spaces = env.observation_spaces
        self._masked = {agent for agent, space in spaces.items() if has_action_mask(space)}
        self._seen = {agent: space_without_mask(spaces[agent]) for agent in self.possible_agents}
        self._columns: dict[Agent, slice] = {}
        width = 0
        for agent, space in self._seen.items():
            self._columns[agent] = slice(width, width := width + gym.spaces.flatdim(space))
        self._latest = np.zeros(width, np.float32)
        self._leaving: list[Agent] = []
        state_space = getattr(env, "state_space", None)
        self._has_own = state_space is not None
        if state_space is None:
            state_space = gym.spaces.Box(-np.inf, np.inf, (width,), np.float32)
        self.observation_spaces = {}
        for agent, space in spaces.items():
            entries = _entries(space)
            if STATE in entries:
                raise ValueError(f"observations of {agent!r} have an entry {STATE!r} already")
            self.observation_spaces[agent] = gym.spaces.Dict({**entries, STATE: state_space})

    def reset(self, *, seed: int | None = None, options: Any = None) -> FirstDicts:
        observations, infos = self.env.reset(seed=seed, options=options)
        self._latest[:], self._leaving = 0.0, []
        return self._with_state(observations), infos

    def step(self, actions: dict[Agent, Any]) -> Dicts:
        observations, rewards, terminateds, truncateds, infos = self.env.step(actions)
        for agent in self._leaving:
            self._latest[self._columns[agent]] = 0.0
        flags = *terminateds.items(), *truncateds.items()
        self._leaving = [agent for agent, leaves in flags if leaves and agent != ALL]
        return self._with_state(observations), rewards, terminateds, truncateds, infos

    def _with_state(self, observations: Mapping[Agent, Any]) -> dict[Agent, Any]:
        if self._has_own:
            state = np.array(self.env.state())
        else:
            for agent, observation in observations.items():
                seen = without_mask(observation) if agent in self._masked else observation
                flat: Any = gym.spaces.flatten(self._seen[agent], seen)
                self._latest[self._columns[agent]] = flat
            state = self._latest.copy()
        return {agent: {**_entries(own), STATE: state} for agent, own in observations.items()}

    @property
    def unwrapped(self) -> Any:
        """The environment without wrappers."""
        return getattr(self.env, "unwrapped", self.env)

    @property
    def offers_state(self) -> bool:
        """Whether the environment offers its state."""
        return offers_state(self.env)

    def get_state(self) -> dict[str, Any]:
        """The environment's state, the latest observations, and the agents that have just left."""
        leaving = [self.possible_agents.index(agent) for agent in self._leaving]
        return {"env": take_state(self.env), "latest": self._latest, "leaving": leaving}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `get_state`."""
        give_state(self.env, state["env"])
        self._latest[:] = state["latest"]
        self._leaving = [self.possible_agents[index] for index in state["leaving"]]

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


def _entries(observation: Any) -> Mapping[str, Any]:
    """The entries of an observation, or of its space."""
    if isinstance(observation, gym.spaces.Dict):
        return observation.spaces
    return observation if isinstance(observation, Mapping) else {OBSERVATION: observation}
