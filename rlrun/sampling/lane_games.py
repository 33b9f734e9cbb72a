"""What brings the lanes of a multi-agent runner back: seeds, actions, and who played which policy.

A *game* is what a lane's environment has played since it was reset. It is one episode, but for a
soft horizon, which makes it several: the *parts*, of which the last is running. An environment is a
function of the seed that it was reset with and of the actions, so they are all that is kept.

    B  lanes
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.sampling.agent_play import Lane
from rlrun.sampling.episodes import LONGEST_REPLAY
from rlrun.sampling.seeding import Role, episode_seed

Array = NDArray[Any]


@dataclass
class GamePart:
    """One episode of a game."""

    number: int
    """Of the episode, in its lane."""
    episode_id: int
    steps: int = 0
    known: list[str] = field(default_factory=list)
    """Ids of the policies that there were when it began."""
    policies: list[str] = field(default_factory=list)
    """Of each agent, by index."""
    actions: dict[int, list[tuple[Array, Array]]] = field(default_factory=dict)
    """Agent index -> env steps of its actions, and these as `PolicyActor.to_env` takes them."""

    def take_from(self, lane: Lane) -> None:
        """What the lane knows of it."""
        self.steps = lane.step
        self.known = [] if lane.start is None else list(lane.start.policies)
        self.policies = [agent.policy_id for agent in lane.agents.values()]

    def recorded(self) -> dict[int, tuple[Array, Array]]:
        """The actions, each agent's in one piece."""
        for agent, pieces in self.actions.items():
            steps, actions = (np.concatenate(piece) for piece in zip(*pieces, strict=True))
            self.actions[agent] = [(steps, actions)]
        return {agent: pieces[0] for agent, pieces in self.actions.items()}

    def get_state(self) -> dict[str, Any]:
        """Plain values and arrays."""
        return {
            "number": self.number,
            "steps": self.steps,
            "known": self.known,
            "policies": self.policies,
            "actions": {
                str(agent): {"steps": steps, "actions": actions}
                for agent, (steps, actions) in self.recorded().items()
            },
        }


def _restored(state: Mapping[str, Any], episode_id: int) -> GamePart:
    return GamePart(
        int(state["number"]),
        episode_id,
        int(state["steps"]),
        [str(policy_id) for policy_id in state["known"]],
        [str(policy_id) for policy_id in state["policies"]],
        {
            int(agent): [(np.asarray(part["steps"]), np.asarray(part["actions"]))]
            for agent, part in state["actions"].items()
        },
    )


class LaneGames:
    """The games of B lanes: numbers and seeds of their episodes, and what they can be replayed by.

    Args:
        key: the experiment's seed, what the runner is for, and its index.
    """

    def __init__(self, key: tuple[int, Role, int], num_lanes: int) -> None:
        self._key = key
        self._numbers = [-1] * num_lanes  # of the episode that each lane plays
        self._parts: list[list[GamePart]] = [[] for _ in range(num_lanes)]

    def begin(self, lane: Lane) -> None:
        """The lane's next episode begins, in a new game or in that which goes on."""
        self._numbers[lane.index] += 1
        number = self._numbers[lane.index]
        if not lane.goes_on:
            self._parts[lane.index] = []
        self._parts[lane.index].append(GamePart(number, self._id_of(lane.index, number)))
        self._name(lane, number)

    def end(self, lane: Lane) -> None:
        """The lane's episode is over."""
        self._parts[lane.index][-1].take_from(lane)

    def _name(self, lane: Lane, number: int) -> None:
        lane.seed = self.seed_of(lane, number)
        lane.reset_seed = self.seed_of(lane, self._parts[lane.index][0].number)
        lane.episode_id = self._id_of(lane.index, number)

    def seed_of(self, lane: Lane, number: int) -> int:
        """The seed of an episode."""
        seed, role, runner_index = self._key
        return episode_seed(seed, role, runner_index, lane.index, number)

    def _id_of(self, lane: int, number: int) -> int:
        return (self._key[2] << 48) | (lane << 32) | number

    def record(self, places: Array, steps: Array, actions: Array) -> None:
        """Keep actions, as `PolicyActor.newly_taken` tells them, of games that go on."""
        order = np.lexsort(places.T)  # stable: each agent's stay in their order
        places, steps, actions = places[order], steps[order], actions[order]
        cuts = np.flatnonzero(np.any(np.diff(places, axis=0), axis=1)) + 1
        pieces = (np.split(column, cuts) for column in (places, steps, actions))
        for at, *taken in zip(*pieces, strict=True):
            lane, agent, episode_id = at[0].tolist()
            for part in self._parts[lane]:
                if part.episode_id == episode_id:
                    part.actions.setdefault(agent, []).append((taken[0], taken[1]))

    def get_state(self, lane: Lane) -> list[dict[str, Any]]:
        """The lane's game; without actions once nobody would want to repeat them all."""
        parts = self._parts[lane.index]
        parts[-1].take_from(lane)
        if sum(part.steps for part in parts) > LONGEST_REPLAY:
            for part in parts:
                part.actions = {}
        return [part.get_state() for part in parts]

    def set_state(self, lane: Lane, state: Sequence[Mapping[str, Any]]) -> list[GamePart]:
        """Take over what `get_state` returned; what is to be replayed, none of it if too long."""
        ids = (self._id_of(lane.index, int(part["number"])) for part in state)
        parts = [_restored(part, one) for part, one in zip(state, ids, strict=True)]
        self._parts[lane.index] = parts
        self._name(lane, parts[-1].number)
        return [] if sum(part.steps for part in parts) > LONGEST_REPLAY else parts

    @property
    def numbers(self) -> Array:
        """Of the episodes that the lanes play, int ``[B]``."""
        return np.array(self._numbers, np.int64)

    @numbers.setter
    def numbers(self, numbers: Array) -> None:
        self._numbers = [int(number) for number in numbers]
