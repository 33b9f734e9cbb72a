"""AgentPieces: connectors of the user's own between one policy and its agents.

A piece is told of lanes that may each keep something. With several agents a lane is an agent in a
sub-environment, whichever policies there are: its number follows from both and never changes. Owns
these numbers, and the actions that have not been answered.

    k  agents of a step    m  of them, those who see something
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.envs.vector_env import take_lanes
from rlrun.sampling.agent_play import AgentPlay
from rlrun.sampling.runner_connectors import RunnerConnectors

Array = NDArray[Any]


class AgentPieces:
    """See the module.

    Args:
        connectors: with `custom` pieces, for as many lanes as there are agents in all of the
            sub-environments.
        agents: who may ever take part in one of them.
    """

    def __init__(self, connectors: RunnerConnectors, agents: Sequence[Any]) -> None:
        self._connectors = connectors
        self._positions = {agent: i for i, agent in enumerate(agents)}
        self._actions: dict[int, Any] = {}  # by lane, what was not answered yet

    def _lanes(self, agents: Sequence[AgentPlay]) -> Array:
        per_env = len(self._positions)
        numbers = [agent.lane.index * per_env + self._positions[agent.id] for agent in agents]
        return np.array(numbers, np.int64)

    def act(self, agents: Sequence[AgentPlay], actions: Array) -> Array:
        """What the pieces make of the policy's actions ``[k, ...]``."""
        lanes = self._lanes(agents)
        self._actions.update(zip(lanes.tolist(), actions, strict=True))
        pipeline: Any = self._connectors.actions
        sent: Array = pipeline.behind_pieces(actions, lanes)
        return sent

    def advance(self, agents: Sequence[AgentPlay], rewards: Array) -> None:
        """Agents that have acted are heard of, with rewards ``[k]``."""
        lanes = self._lanes(agents)
        custom = self._connectors.custom
        if len(lanes) and custom is not None:
            custom.advance(
                np.stack([self._actions[lane] for lane in lanes.tolist()]), rewards, lanes
            )

    def see(
        self, agents: Sequence[AgentPlay], observations: Any, first: Array, *, update: bool
    ) -> Array:
        """Raw observations of these agents ``[m, ...]`` as the policy sees them.

        Args:
            first: whose episodes begin with them, bool ``[m]``. An agent may be there twice: it
                sees the last of an episode and the first of the next.
        """
        lanes = self._lanes(agents)
        pipeline: Any = self._connectors.observations
        space = pipeline.output_space
        seen = np.empty((len(lanes), *space.shape), space.dtype)
        for begins in (False, True):
            rows = np.flatnonzero(first == begins)
            if len(rows):
                part = take_lanes(observations, rows)
                if begins:
                    seen[rows] = pipeline.first(part, lanes[rows], update=update)
                else:
                    seen[rows] = pipeline(part, update=update, lanes=lanes[rows])
        return seen

    def get_state(self) -> dict[str, Any]:
        """The actions that have not been answered; connectors have a state of their own."""
        return {str(lane): np.asarray(action) for lane, action in self._actions.items()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_state` returned."""
        self._actions = {int(lane): np.asarray(action) for lane, action in state.items()}
