"""Adapters of PettingZoo's two interfaces to `MultiAgentEnv`.

In parallel environments all agents act at once, in AEC environments they take turns. PettingZoo
itself is an extra, imported only for its own ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rlrun.envs.horizon import ALL

PREFIX = "pettingzoo/"


def is_id(use: str) -> bool:
    """Whether ``use`` is an id like ``pettingzoo/classic/rps-v2``."""
    return use.startswith(PREFIX)


def make(use: str, kwargs: Mapping[str, Any]) -> Any:
    """Build the environment of an id, in parallel form where it has one.

    Raises:
        ModuleNotFoundError: PettingZoo is not installed.
    """
    try:
        import pettingzoo
    except ModuleNotFoundError:
        message = f'{use} needs PettingZoo: pip install "rlrun[pettingzoo]"'
        raise ModuleNotFoundError(message) from None
    name = use.removeprefix(PREFIX)
    kind = "parallel" if name in pettingzoo.parallel_registry else "aec"
    return pettingzoo.make(kind, name, **kwargs)


def adapted(env: Any) -> Any:
    """The environment, in an adapter if it is one of PettingZoo's."""
    if hasattr(env, "agent_iter"):
        return TurnTaking(env)
    if hasattr(env, "possible_agents") and callable(getattr(env, "observation_space", None)):
        return Parallel(env)
    return env


class _Adapter:
    """The base of both adapters."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.possible_agents = list(env.possible_agents)
        self.observation_spaces = {a: env.observation_space(a) for a in self.possible_agents}
        self.action_spaces = {a: env.action_space(a) for a in self.possible_agents}
        self.metadata = env.metadata
        self.state_space = getattr(env, "state_space", None)

    def state(self) -> Any:
        """The state of the whole environment, where it has a ``state_space``."""
        return self._env.state()

    def render(self) -> Any:
        """The environment's frame."""
        return self._env.render()

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


class Parallel(_Adapter):
    """All agents that are alive act at once."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Start an episode."""
        return self._env.reset(seed=seed, options=options)

    def step(self, actions: dict[Any, Any]) -> Any:
        """Step; the episode ends when no agent is left."""
        observations, rewards, terminateds, truncateds, infos = self._env.step(actions)
        over = not self._env.agents
        cut = over and not any(terminateds.values())
        terminateds = {**terminateds, ALL: over and not cut}
        return observations, rewards, terminateds, {**truncateds, ALL: cut}, infos


class TurnTaking(_Adapter):
    """One agent acts at a time; only the one whose turn it is has an observation."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Start an episode."""
        self._env.reset(seed=seed, options=options)
        agent = self._env.agent_selection
        return {agent: self._env.observe(agent)}, self._infos([agent])

    def step(self, actions: dict[Any, Any]) -> Any:
        """Let the agent act; returns the rewards of all agents in this turn.

        Agents that are done take their last, empty turns here, unseen.
        """
        env = self._env
        terminateds: dict[Any, bool] = {}
        truncateds: dict[Any, bool] = {}
        observations: dict[Any, Any] = {}
        env.step(actions[env.agent_selection])
        rewards = dict(env.rewards)
        for agent in env.agents:
            if env.terminations[agent] or env.truncations[agent]:
                terminateds[agent] = bool(env.terminations[agent])
                truncateds[agent] = bool(env.truncations[agent])
                observations[agent] = env.observe(agent)
        infos = self._infos(observations)  # before the last turns, which delete them
        while env.agents and env.agent_selection in terminateds:
            env.step(None)
        over = not env.agents
        if not over:
            observations[env.agent_selection] = env.observe(env.agent_selection)
            infos |= self._infos([env.agent_selection])
        cut = over and not any(terminateds.values())
        terminateds[ALL], truncateds[ALL] = over and not cut, cut
        return observations, rewards, terminateds, truncateds, infos

    def _infos(self, agents: Iterable[Any]) -> dict[Any, Any]:
        return {agent: dict(self._env.infos.get(agent, {})) for agent in agents}
