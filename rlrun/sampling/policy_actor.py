"""PolicyActor: one policy acts for all its agents, in all sub-environments, with one forward pass.

Owns what belongs to the policy in a multi-agent runner: its connectors, and who sits where. The
trajectories are its collector's. Knows nothing of environments: it is told who sees what, and who
has left.

An agent has a seat: its index into this policy's arrays, for as long as it takes part.

    S  seats    k  agents that act, or are heard of, in a step
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray

from rlrun.data import columns as col
from rlrun.policies.policy import Policy
from rlrun.policies.policy_mapping import Spaces
from rlrun.sampling.action_noise import ActionNoise
from rlrun.sampling.agent_pieces import AgentPieces
from rlrun.sampling.agent_play import AgentFault, AgentPlay, News
from rlrun.sampling.agent_watch import AgentWatch
from rlrun.sampling.log_collector import LogCollector
from rlrun.sampling.policy_inputs import PolicyInputs
from rlrun.sampling.raw_observations import RawObservations
from rlrun.sampling.runner_connectors import RunnerConnectors
from rlrun.sampling.sample_collector import SampleCollector
from rlrun.sampling.seeding import agent_noise

Array = NDArray[Any]

_FIRST_SEATS = 16
_PLAIN_SPACES = (
    gym.spaces.Box,
    gym.spaces.Discrete,
    gym.spaces.MultiDiscrete,
    gym.spaces.MultiBinary,
)


class PolicyActor:
    """Acts for the agents of one policy and logs what became of it.

    Args:
        spaces: of the environment, for agents of this policy.
        connectors: between those and the policy.
        collector: of the trajectories of its agents.
        pieces: the user's own connectors among these; None if there are none.

    Attributes:
        explore: sample actions, or take the best ones.
        wants_infos: whether it has a view of infos, and so is to be told of them.
        filter_learns: whether statistics of observations and rewards learn from what comes.
        waiting: agents whose action is due.
        watch: whoever records what they do, or None.
    """

    def __init__(
        self,
        policy: Policy,
        spaces: Spaces,
        connectors: RunnerConnectors,
        collector: SampleCollector,
        pieces: AgentPieces | None = None,
    ) -> None:
        self.policy, self.spaces, self.connectors = policy, spaces, connectors
        self.observations, self.actions = connectors.observations, connectors.actions
        self.rewards, self._pieces = connectors.rewards, pieces
        self.explore = self.filter_learns = True
        self.inputs = PolicyInputs(policy, 1)
        self.wants_infos = col.INFOS in self.inputs.rows
        self.collector = collector
        collector.set_views(self.inputs.views, self.inputs.rows)
        collector.begin_fragment(None)
        self._raw_observations = RawObservations(spaces[0])
        self._plain_actions = isinstance(spaces[1], _PLAIN_SPACES)
        self._free: list[int] = []
        self._count = np.empty(0, np.int64)  # [S] actions taken in the episode
        self._returns = np.empty(0)  # [S] discounted rewards so far, for their normalisation
        self._noise = ActionNoise(policy)
        self._taken: list[tuple[Array, Array, Array]] = []  # [k, 3] places, [k] steps, actions
        self.waiting: list[AgentPlay] = []
        self._seats = np.empty(0, np.int64)  # [k] seats of those who wait
        self._steps = np.empty(0, np.int64)  # [k] env steps of their episodes
        self._raw: list[Any] = []  # their observations, unprocessed
        self.news = News()
        self.watch: AgentWatch | None = None

    def begin_fragment(self, unsent: frozenset[str], first_unroll_id: int) -> None:
        """A fragment begins: make what the policy asks for now.

        Args:
            unsent: columns that learning does not read.
        """
        inputs = self.inputs
        if self.policy.view_requirements != inputs.requirements or unsent != inputs.unsent:
            inputs.resolve(unsent)
            self.wants_infos = col.INFOS in inputs.rows
            self.collector.set_views(inputs.views, inputs.rows)
        self.collector.begin_fragment(None, first_unroll_id)

    # -- seats ---------------------------------------------------------------------------------

    def seat(self, agent: AgentPlay, taken: int = 0, seat: int | None = None) -> None:
        """Give an agent a seat.

        Args:
            taken: actions it has taken already, where a runner is restored.
            seat: the one that it had then.
        """
        while not self._free or (seat is not None and seat >= len(self._count)):
            self._add_seats()
        if seat is None:
            seat = self._free.pop()
        else:
            self._free.remove(seat)
        agent.seat = seat
        self._count[seat], self._returns[seat] = taken, 0.0
        self._noise.begin_episode(seat, agent_noise(agent.lane.seed, agent.index), taken)

    def _add_seats(self) -> None:
        old = len(self._count)
        new = max(_FIRST_SEATS, old)
        self._free = [*range(old + new - 1, old - 1, -1), *self._free]
        self._count = np.append(self._count, np.zeros(new, np.int64))
        self._returns = np.append(self._returns, np.zeros(new))
        self._noise.resize(old + new)

    def actions_taken(self, agent: AgentPlay) -> int:
        """In this episode, by an agent that has a seat or had one until this step."""
        return int(self._count[agent.seat]) if agent.seat >= 0 else agent.taken

    def _leave(self, agent: AgentPlay) -> None:
        agent.taken = int(self._count[agent.seat])
        self._free.append(agent.seat)
        agent.seat = -1

    # -- acting --------------------------------------------------------------------------------

    def act(self, lanes: Collection[Any] | None = None) -> None:
        """Choose an action for those who wait, into `actions` of their lanes.

        Args:
            lanes: only for agents in these; None: for all.
        """
        agents, raw, seats, steps = self._due(lanes)
        if not agents:
            return
        noise = self._noise.next(seats) if self.explore else None
        seen = self.collector.inputs(seats)
        if self.inputs.views is None:
            actions, _, extras = self.policy.compute_actions(
                seen, explore=self.explore, noise=noise
            )
        else:
            actions, extras = self.inputs.act(seen, explore=self.explore, noise=noise)
        actions = np.asarray(actions)
        self.collector.act(seats, actions, extras)
        self._count[seats] += 1
        if self._pieces is not None:
            actions = self._pieces.act(agents, actions)
        taken = self.to_env(actions)
        self._taken.append((self.collector.places[seats], steps, actions))
        if self.watch is not None:
            taken = list(taken)
            self.watch.acted(agents, raw, taken)
        for agent, action in zip(agents, taken, strict=True):
            agent.lane.actions[agent.id] = action

    def _due(
        self, lanes: Collection[Any] | None
    ) -> tuple[list[AgentPlay], list[Any], Array, Array]:
        """Those who are to act now, what they see, their seats and env steps; others wait on."""
        due = self.waiting, self._raw, self._seats, self._steps
        if lanes is None:
            none = self._seats[:0]
            self.waiting, self._raw, self._seats, self._steps = [], [], none, none
            return due
        now = [i for i, agent in enumerate(self.waiting) if agent.lane in lanes]
        self._keep_waiting([i for i in range(len(self.waiting)) if i not in now])
        agents, raw, seats, steps = due
        return [agents[i] for i in now], [raw[i] for i in now], seats[now], steps[now]

    def _keep_waiting(self, which: list[int]) -> None:
        self.waiting = [self.waiting[i] for i in which]
        self._raw = [self._raw[i] for i in which]
        self._seats, self._steps = self._seats[which], self._steps[which]

    def to_env(self, actions: Any) -> Any:
        """From what was recorded of actions ``[k, ...]`` to k actions of the environment."""
        actions = np.asarray(actions)
        if self.connectors.custom is not None:
            converted = self.connectors.custom.send(actions)
        else:
            converted = actions if self.actions.identity else self.actions(actions)
        if self._plain_actions:
            return converted
        return iterate(batch_space(self.spaces[1], len(actions)), converted)

    # -- hearing -------------------------------------------------------------------------------

    def hear(self) -> None:
        """Take in the news of a step: who acts next, which transitions are complete, who left.

        Raises:
            AgentFault: an observation or a reward is not what it must be.
        """
        news, self.news = self.news, News()
        if not news.staying and not news.leaving:
            return
        raw, seats, steps = news.observations, news.seats, news.steps
        staying = len(news.staying)
        sees = np.ones(staying + len(news.leaving), np.bool_)
        if news.leaving:
            sees[staying:] = [last is not None for last in news.last_observations]
            seats = seats + [agent.seat for agent in news.leaving]
            raw = raw + [last for last in news.last_observations if last is not None]
            steps = steps + news.last_steps
        self.waiting += news.staying
        self._raw += news.observations
        all_seats, all_steps = np.array(seats), np.array(steps)
        self._seats = np.concatenate([self._seats, all_seats[:staying]])
        self._steps = np.concatenate([self._steps, all_steps[:staying]])
        rewards, flags = self._rewards_and_flags(news, all_steps)
        if self.watch is not None:
            self.watch.heard(news, rewards, flags)
        identity = self.rewards.identity
        learned = rewards if identity else self._learned(rewards, flags, all_seats)
        seen: Any = self._raw_observations.checked(raw, news) if raw else np.empty(0)
        if self._pieces is not None:
            observed = np.flatnonzero(sees)
            seen = self._behind_pieces(news, seen, all_seats, observed, rewards)
        elif raw:
            seen = self.observations(seen, update=self.filter_learns)
        # Transitions of agents that have acted, then ends, then the agents that join.
        acted = self._count[all_seats] > 0
        if acted.any():
            self.collector.add_step(
                None,
                {},
                rewards[acted],
                flags[acted, 0],
                flags[acted, 1],
                seen[acted[sees]],
                slots=all_seats[acted],
                observed=None if sees[acted].all() else sees[acted],
                learned_rewards=learned[acted],
                infos=self._infos(news, acted) if self.wants_infos else None,
                steps=all_steps[acted],
            )
        if news.leaving:
            self.collector.end_episodes(all_seats[len(news.staying) :])
        if not acted.all():
            joining = [agent for agent in news.staying if not self._count[agent.seat]]
            places = np.array([(agent.lane.index, agent.index) for agent in joining])
            ids = np.array([agent.lane.episode_id for agent in joining])
            self.collector.begin_episodes(all_seats[~acted], ids, seen[~acted[sees]], places)
        for agent in news.leaving:
            self._leave(agent)

    @staticmethod
    def _infos(news: News, acted: Array) -> dict[int, Any]:
        infos = news.infos + news.last_infos
        return dict(enumerate(infos[i] for i in np.flatnonzero(acted)))

    def _behind_pieces(
        self, news: News, stacked: Any, seats: Array, observed: Array, rewards: Array
    ) -> Any:
        assert self._pieces is not None
        agents, acted = news.staying + news.leaving, self._count[seats] > 0
        self._pieces.advance([agents[i] for i in np.flatnonzero(acted)], rewards[acted])
        if not len(observed):
            return stacked
        seeing, first = [agents[i] for i in observed], ~acted[observed]
        return self._pieces.see(seeing, stacked, first, update=self.filter_learns)

    def _rewards_and_flags(self, news: News, steps: Array) -> tuple[Array, Array]:
        """Of all who are heard of: rewards since their last actions, and ends, bool ``[k, 2]``."""
        agents = news.staying + news.leaving
        rewards = np.array([agent.credit for agent in agents], np.float64)
        if not np.isfinite(rewards).all():
            i = int(np.flatnonzero(~np.isfinite(rewards))[0])
            raise AgentFault(agents[i], f"the reward is {agents[i].credit}", int(steps[i]) - 1)
        flags = np.zeros((len(agents), 2), np.bool_)
        if news.leaving:
            flags[len(news.staying) :] = news.flags
        for agent in agents:
            agent.credit = 0.0
        return rewards, flags

    def _learned(self, rewards: Array, flags: Array, seats: Array) -> Array:
        """What learning sees of the rewards ``[k]`` of these seats."""
        returns = self._returns[seats]
        learned = self.rewards(
            rewards,
            flags[:, 0],
            flags[:, 1],
            valid=self._count[seats] > 0,  # who has not acted is not rewarded
            update=self.filter_learns,
            returns=returns,
        )
        self._returns[seats] = returns
        return learned

    # -- fragments -----------------------------------------------------------------------------

    def newly_taken(self) -> tuple[Array, Array, Array] | None:
        """The actions since the last call, agents mixed and each one's in its order.

        Returns:
            Lane, agent and episode id, int ``[n, 3]``; env steps of the episode, int ``[n]``; and
            what `to_env` takes of the actions ``[n, ...]``. None for none.
        """
        if not self._taken:
            return None
        places, steps, actions = (np.concatenate(parts) for parts in zip(*self._taken, strict=True))
        self._taken = []
        return places, steps, actions

    def drop(self, agents: Collection[AgentPlay], lane: int, episode_id: int) -> None:
        """Forget an episode that is given up, with these agents of this policy."""
        self._keep_waiting([i for i, agent in enumerate(self.waiting) if agent not in agents])
        if self.watch is not None:
            self.watch.drop(agents)
        seated = [agent for agent in agents if agent.seat >= 0]
        slots = np.array([agent.seat for agent in seated], np.int64)
        self.collector.drop(slots, episode_id)
        for agent in seated:
            self._leave(agent)

    def forget(self) -> None:
        """Drop all transitions of a play that nobody collects."""
        self.collector.discard()
        self.collector.begin_fragment(None)
        self._taken = []

    def forget_pieces(self) -> None:
        """Let the user's own connectors be as made, so that no play depends on another."""
        if self.connectors.custom is not None:
            self.connectors.custom.forget()

    def for_play(self, explore: bool) -> PolicyActor:
        """An actor for play beside: the same policy and connectors, which learn nothing there."""
        space = self.observations.output_space
        assert space.shape is not None  # the pipeline puts out arrays
        collector = LogCollector(None, space.shape, space.dtype)
        twin = PolicyActor(self.policy, self.spaces, self.connectors, collector, self._pieces)
        twin.explore, twin.filter_learns = explore, False
        return twin

    # -- state ---------------------------------------------------------------------------------

    def get_state(self, agents: list[AgentPlay]) -> dict[str, Any]:
        """Everything but the policy; ``agents`` are those who have seats."""
        seats = [agent.seat for agent in agents]
        unfiltered = None
        if self._raw:
            unfiltered = self.observations.preprocess(self._raw_observations.stack(self._raw))
        return {
            "collector": self.collector.get_state(),
            "seats": seats,
            "agents": np.array([[agent.lane.index, agent.index] for agent in agents], np.int64),
            "count": self._count[seats],
            "returns": self._returns[seats],
            "noise": self._noise.get_state(seats),
            "waiting": np.array([[a.lane.index, a.index] for a in self.waiting], np.int64),
            "unfiltered": unfiltered,
            "connectors": self.connectors.get_state(),
            "unanswered": {} if self._pieces is None else self._pieces.get_state(),
        }

    def set_state(self, state: Mapping[str, Any], find: Callable[[int, int], AgentPlay]) -> None:
        """Take over what `get_state` returned.

        Args:
            find: the agent of a lane and an index; it has no seat yet.
        """
        self.connectors.set_state(state["connectors"])
        if self._pieces is not None:
            self._pieces.set_state(state["unanswered"])
        counts = np.asarray(state["count"]).tolist()
        agents = [find(*place) for place in np.asarray(state["agents"]).tolist()]
        seats = [int(seat) for seat in state["seats"]]
        self._free = list(range(len(self._count)))
        for agent, count, seat in zip(agents, counts, seats, strict=True):
            self.seat(agent, count, seat)
        self.collector.set_state(state["collector"])
        self._returns[seats] = state["returns"]
        self._noise.set_state(state["noise"], seats)
        self.waiting = [find(*place) for place in np.asarray(state["waiting"]).tolist()]
        self._raw = []
        self._seats = np.array([agent.seat for agent in self.waiting], np.int64)
        self._steps = np.array([agent.lane.step for agent in self.waiting], np.int64)

    def see_again(self, raw: Mapping[tuple[int, int], Any], unfiltered: Any) -> set[int]:
        """Those who wait have seen this, by lane and agent, in a replay; lanes where it differs.

        Args:
            unfiltered: what they had seen when the state was taken, ``[k, ...]``.
        """
        strayed = set()
        for i, agent in enumerate(self.waiting):
            place = agent.lane.index, agent.index
            self._raw.append(raw.get(place))
            if place not in raw:
                strayed.add(agent.lane.index)
                continue
            found = self.observations.preprocess(self._raw_observations.stack([raw[place]]))[0]
            if not np.array_equal(found, unfiltered[i]):
                strayed.add(agent.lane.index)
        return strayed
