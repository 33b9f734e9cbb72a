"""AgentWatch: what agents do and are led to, for whoever records a play.

Owns actions that have not been answered yet. The `PolicyActor`s of a play tell one watch; where
nobody records, there is none.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from rlrun.sampling.agent_play import AgentPlay, News
from rlrun.sampling.played_step import AgentTransition

Array = NDArray[Any]


@dataclass(frozen=True)
class AgentAction:
    """One that has not been answered; see `AgentTransition`."""

    episode: int
    step: int
    obs: Any
    action: Any


class AgentWatch:
    """See the module."""

    def __init__(self) -> None:
        self._open: dict[AgentPlay, AgentAction] = {}
        self._complete: list[AgentTransition] = []

    def acted(
        self, agents: Sequence[AgentPlay], seen: Sequence[Any], actions: Sequence[Any]
    ) -> None:
        """These agents act on what they have seen; all values are the environment's."""
        for agent, obs, action in zip(agents, seen, actions, strict=True):
            lane = agent.lane
            # An environment may write its next observation into the same array.
            self._open[agent] = AgentAction(lane.episode_id, lane.step, deepcopy(obs), action)

    def heard(self, news: News, rewards: Array, flags: Array) -> None:
        """Somebody is heard of, with rewards ``[k]`` and ends ``[k, 2]``."""
        agents = news.staying + news.leaving
        led_to = news.observations + news.last_observations
        for agent, obs, reward, ends in zip(agents, led_to, rewards, flags, strict=True):
            if agent in self._open:
                taken = self._open.pop(agent)
                transition = AgentTransition(
                    episode=taken.episode,
                    agent=agent.id,
                    policy_id=agent.policy_id,
                    step=taken.step,
                    obs=taken.obs,
                    action=taken.action,
                    next_obs=taken.obs if obs is None else obs,
                    reward=float(reward),
                    terminated=bool(ends[0]),
                    truncated=bool(ends[1]),
                )
                self._complete.append(transition)

    def drop(self, agents: Collection[AgentPlay]) -> None:
        """The episode of these agents is given up."""
        for agent in agents:
            self._open.pop(agent, None)

    def take(self) -> list[AgentTransition]:
        """What has been completed since this was asked last."""
        complete, self._complete = self._complete, []
        return complete
