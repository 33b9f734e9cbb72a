"""Returns of agents and of policies, named apart from the return of the environment.

Owns a window over the last finished episodes, as `EpisodeStatistics` has one over their totals.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rlrun.sampling.episodes import EpisodeRecord

Agents = tuple[tuple[str, str, float], ...]


class AgentReturns:
    """Means over agents of the last finished episodes.

    Args:
        window: episodes in the means; if more end in one iteration, all of those count.
        agents: that results always name, with None where nothing is known.
    """

    def __init__(self, window: int, agents: Iterable[str]) -> None:
        self._window = window
        self._agents = list(agents)
        self._episodes: deque[Agents] = deque(maxlen=window)
        self._this_iteration: list[Agents] = []

    def add(self, episodes: Sequence[EpisodeRecord]) -> None:
        """Count finished episodes."""
        self._this_iteration += [episode.agents for episode in episodes]

    def end_iteration(self, policies: Iterable[str]) -> dict[str, Any]:
        """Keys of the iteration's result; the next one starts empty."""
        ended, self._this_iteration = self._this_iteration, []
        self._episodes.extend(ended)
        counted = ended if len(ended) > self._window else self._episodes
        return return_means(counted, policies, self._agents)

    def get_state(self) -> dict[str, Any]:
        """The window."""
        rows = [(i, *agent) for i, agents in enumerate(self._episodes) for agent in agents]
        return {
            "episode": np.array([row[0] for row in rows], np.int64),
            "agent": [row[1] for row in rows],
            "policy": [row[2] for row in rows],
            "return": np.array([row[3] for row in rows], np.float64),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` returned."""
        episodes: dict[int, list[tuple[str, str, float]]] = defaultdict(list)
        columns = (state["episode"], state["agent"], state["policy"], state["return"])
        for episode, agent, policy, value in zip(*columns, strict=True):
            episodes[int(episode)].append((str(agent), str(policy), float(value)))
        self._episodes = deque((tuple(agents) for agents in episodes.values()), self._window)


def return_means(
    episodes: Iterable[Agents], policies: Iterable[str], agents: Iterable[str]
) -> dict[str, Any]:
    """``policy_return_mean`` and ``agent_return_mean``: an agent's return in an episode, averaged.

    Args:
        policies, agents: that are always named, with None where nothing is known.
    """
    by_policy: dict[str, list[float]] = {policy: [] for policy in policies}
    by_agent: dict[str, list[float]] = {agent: [] for agent in agents}
    for players in episodes:
        for agent, policy, value in players:
            by_policy.setdefault(policy, []).append(value)
            by_agent.setdefault(agent, []).append(value)
    return {"policy_return_mean": _means(by_policy), "agent_return_mean": _means(by_agent)}


def _means(values: Mapping[str, Sequence[float]]) -> dict[str, float | None]:
    return {name: float(np.mean(found)) if found else None for name, found in values.items()}
