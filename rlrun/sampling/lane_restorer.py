"""LaneRestorer: where the lanes of a multi-agent runner stand, as plain values, and back again.

Owns what is written down of lanes, and their replay: each is reset with its game's seed and repeats
the actions. Must not know fragments and batches; what is kept of a game is `lane_games`' matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from rlrun.policies.policy_mapping import EpisodeStart, MappingError
from rlrun.sampling.agent_play import AgentPlay, Lane
from rlrun.sampling.lane_games import GamePart, LaneGames
from rlrun.sampling.seeding import mapping_rng

if TYPE_CHECKING:
    from rlrun.sampling.multi_agent_loop import MultiAgentLoop

Seen = dict[tuple[int, int], Any]
"""Observations by lane and agent."""


class LaneRestorer:
    """Writes down the lanes of a loop, and brings others to where those were."""

    def __init__(self, loop: MultiAgentLoop, games: LaneGames) -> None:
        self._loop, self._games = loop, games

    def lane_states(self) -> list[dict[str, Any]]:
        """Plain numbers and arrays, of each lane; all of them have begun an episode."""
        return [self._lane_state(lane) for lane in self._loop.lanes]

    def _lane_state(self, lane: Lane) -> dict[str, Any]:
        agents = list(lane.agents.values())
        return {
            "step": lane.step,
            "total": lane.total,
            "silent": lane.silent,
            "goes_on": lane.goes_on,
            "game": self._games.get_state(lane),
            "credits": np.array([agent.credit for agent in agents], np.float64),
            "totals": np.array([agent.total for agent in agents], np.float64),
        }

    def actor_states(self) -> dict[str, dict[str, Any]]:
        """What the policies' actors know of those who take part, by policy id."""
        agents = [agent for lane in self._loop.lanes for agent in lane.agents.values()]
        return {
            policy_id: actor.get_state([a for a in agents if a.actor is actor and a.seat >= 0])
            for policy_id, actor in self._loop.actors.items()
        }

    def set_state(
        self, lanes: Sequence[Mapping[str, Any]], actors: Mapping[str, Mapping[str, Any]]
    ) -> list[Lane]:
        """Take over what `lane_states` and `actor_states` returned.

        Returns:
            Lanes that could not be brought back, or see something else now.

        Raises:
            ValueError: it was of another number of lanes.
        """
        here = len(self._loop.lanes)
        if len(lanes) != here:
            raise ValueError(f"it is of {len(lanes)} sub-environments, now there are {here}")
        seen: Seen = {}
        strayed: set[int] = set()
        for lane, state in zip(self._loop.lanes, lanes, strict=True):
            seen |= self._restore(lane, state, strayed)
        by_place = {
            (lane.index, agent.index): agent
            for lane in self._loop.lanes
            for agent in lane.agents.values()
        }
        for policy_id, actor_state in actors.items():
            actor = self._loop.actors.get(policy_id)
            if actor is None:
                continue
            actor.set_state(actor_state, lambda lane, agent: by_place[lane, agent])
            strayed |= actor.see_again(seen, actor_state["unfiltered"])
        return [self._loop.lanes[index] for index in sorted(strayed)]

    def _restore(self, lane: Lane, state: Mapping[str, Any], strayed: set[int]) -> Seen:
        """Bring the lane back; what those who wait see."""
        parts = self._games.set_state(lane, state["game"])
        lane.step, lane.silent = int(state["step"]), int(state["silent"])
        lane.total, lane.goes_on = float(state["total"]), bool(state["goes_on"])
        policies = [str(policy_id) for policy_id in state["game"][-1]["policies"]]
        lane.agents, seen = {}, {}
        known = self._loop.actors.keys()
        # Not if it would take too long, or one of the policies is gone, and the episode with it.
        if parts and all(policy in known for part in parts for policy in part.policies):
            seen = self._replay(lane, parts)
            if len(lane.agents) < len(policies):  # they did not come again
                strayed.add(lane.index)
        else:
            strayed.add(lane.index)
        self._fill_up(lane, policies, state)
        return seen

    def _fill_up(self, lane: Lane, policies: Sequence[str], state: Mapping[str, Any]) -> None:
        """Let a lane that was replayed have all agents that it had, with their rewards.

        Missing ones are of no use, but they are counted: the lane starts afresh then.
        """
        for index in range(len(lane.agents), len(policies)):
            actor: Any = self._loop.actors.get(policies[index])
            nobody = AgentPlay(("gone", index), index, lane, actor, policies[index])
            lane.agents[nobody.id] = nobody
        for agent, credit, total in zip(
            lane.agents.values(), state["credits"], state["totals"], strict=True
        ):
            agent.credit, agent.total = float(credit), float(total)

    # -- replay --------------------------------------------------------------------------------

    def _replay(self, lane: Lane, parts: Sequence[GamePart]) -> Seen:
        """Bring the lane's environment to where it was, without anybody hearing of it.

        Args:
            lane: with the seed that its environment was reset with.
            parts: the episodes since then, the last of which is running.

        Returns:
            The last observations of those who wait.
        """
        observations = self._loop.reset(lane)
        for part in parts:
            seed = self._games.seed_of(lane, part.number)
            lane.agents = {}
            lane.start = EpisodeStart(seed, tuple(part.known), mapping_rng(seed))
            observations = self._repeat(lane, part, observations)
        waiting = ((lane.agents.get(name), seen) for name, seen in observations.items())
        return {(lane.index, agent.index): seen for agent, seen in waiting if agent is not None}

    def _repeat(
        self, lane: Lane, part: GamePart, observations: Mapping[Any, Any]
    ) -> Mapping[Any, Any]:
        """Replay one episode that begins with these observations; returns the last ones."""
        self._recall(lane, observations, part.policies)
        actors = [self._loop.actors[policy_id] for policy_id in part.policies]
        converted = {
            index: dict(zip(at.tolist(), actors[index].to_env(actions), strict=True))
            for index, (at, actions) in part.recorded().items()
        }
        ids = list(lane.agents)
        for step in range(part.steps):
            actions = {
                ids[index]: taken[step]
                for index, taken in converted.items()
                if step in taken and index < len(ids)
            }
            try:
                observations, _, terminateds, truncateds, _ = lane.env.step(actions)
            except Exception as error:
                raise self._loop.raised(error, lane, "step") from None
            gone = {name for flags in (terminateds, truncateds) for name in flags if flags[name]}
            observations = {name: seen for name, seen in observations.items() if name not in gone}
            self._recall(lane, observations, part.policies)
            ids = list(lane.agents)
        return observations

    def _recall(self, lane: Lane, observations: Mapping[Any, Any], policies: list[str]) -> None:
        """Agents join in the order in which they did."""
        for agent_id in observations:
            index = len(lane.agents)
            if agent_id not in lane.agents and index < len(policies):
                policy_id = policies[index]
                actor = self._loop.actors[policy_id]
                # Asked again, so that its random numbers go on from where they were.
                with suppress(MappingError):
                    assert lane.start is not None
                    self._loop.mapping.policy_of(agent_id, lane.start)
                lane.agents[agent_id] = AgentPlay(agent_id, index, lane, actor, policy_id)
