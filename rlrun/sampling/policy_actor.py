"""PolicyActor: one policy acts for all its agents, in all sub-environments, with one forward pass.

Owns what belongs to the policy in a multi-agent runner: its connectors, its agents' seats, and the
log of their rows. Knows nothing of environments: it is told who sees what, and who has left.

An agent has a seat: its index into this policy's arrays, for as long as it takes part.

    S  seats    k  agents that act, or are heard of, in a step    P  rows that views look back at
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.data.trajectory_views import TrajectoryViews
from rlrun.policies.action_sampling import action_sampler
from rlrun.policies.policy import Policy
from rlrun.sampling import agent_log as names
from rlrun.sampling.agent_log import AgentLog, to_batch
from rlrun.sampling.agent_play import AgentFault, AgentPlay, News
from rlrun.sampling.envs import observation_problem
from rlrun.sampling.episode_vector_env import bad_value_test
from rlrun.sampling.policy_mapping import Spaces
from rlrun.sampling.runner_connectors import RunnerConnectors
from rlrun.sampling.seat_noise import SeatNoise

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

    Attributes:
        explore: sample actions, or take the best ones.
        filter_learns: whether statistics of observations and rewards learn from what comes.
        waiting: agents whose action is due.
    """

    def __init__(
        self,
        policy: Policy,
        spaces: Spaces,
        connectors: RunnerConnectors,
    ) -> None:
        self.policy, self.spaces, self.connectors = policy, spaces, connectors
        self.observations, self.actions = connectors.observations, connectors.actions
        self.rewards = connectors.rewards
        self.log = AgentLog(self.observations.output_space)
        self.explore = self.filter_learns = True
        self._stack = _stacker(spaces[0])
        self._is_bad = bad_value_test(spaces[0])
        self._plain_actions = isinstance(spaces[1], _PLAIN_SPACES)
        self._free: list[int] = []
        self._place = np.empty((0, 3), np.int64)  # [S] lane, agent index and episode id
        self._open = np.empty(0, np.int64)  # [S] row of the action that was not answered, or -1
        self._count = np.empty(0, np.int64)  # [S] actions taken in the episode
        self._returns = np.empty(0)  # [S] discounted rewards so far, for their normalisation
        self._recent = np.empty((0, 0), np.int64)  # [S, P] rows of the last actions, oldest first
        self._noise = SeatNoise(policy)
        self.waiting: list[AgentPlay] = []
        self._rows = np.empty(0, np.int64)  # [k] log rows of those who wait
        self._seats = np.empty(0, np.int64)  # [k] their seats
        self._steps = np.empty(0, np.int64)  # [k] env steps of their episodes
        self._raw: list[Any] = []  # their observations, unprocessed
        self.news = News()
        self.views: TrajectoryViews | None = None
        self.look_at_views()

    def look_at_views(self) -> None:
        """Find out what the policy sees besides the present observation."""
        views = TrajectoryViews(self.policy.view_requirements, self.policy.get_initial_state())
        self.views = None if views.trivial else views
        lookback = 0 if self.views is None else self.views.lookback
        if self._recent.shape[1] != lookback:
            self._recent = np.full((len(self._open), lookback), -1)

    # -- seats ---------------------------------------------------------------------------------

    def seat(self, agent: AgentPlay, taken: int = 0) -> None:
        """Give an agent a seat.

        Args:
            taken: actions it has taken already, where a runner is restored.
        """
        if not self._free:
            self._add_seats()
        seat = agent.seat = self._free.pop()
        self._open[seat], self._count[seat], self._returns[seat] = -1, taken, 0.0
        self._recent[seat] = -1
        self._place[seat] = agent.lane.index, agent.index, agent.lane.episode_id
        self._noise.begin(seat, agent.lane.seed, agent.index, taken)

    def _add_seats(self) -> None:
        old = len(self._open)
        new = max(_FIRST_SEATS, old)
        self._free = list(range(old + new - 1, old - 1, -1))
        self._place = np.append(self._place, np.zeros((new, 3), np.int64), axis=0)
        self._open = np.append(self._open, np.full(new, -1))
        self._count = np.append(self._count, np.zeros(new, np.int64))
        self._returns = np.append(self._returns, np.zeros(new))
        self._recent = np.append(self._recent, np.full((new, self._recent.shape[1]), -1), axis=0)

    def actions_taken(self, agent: AgentPlay) -> int:
        """In this episode, by an agent that has a seat or had one until this step."""
        return int(self._count[agent.seat]) if agent.seat >= 0 else agent.taken

    def _leave(self, agent: AgentPlay) -> None:
        agent.taken = int(self._count[agent.seat])
        self._free.append(agent.seat)
        self._open[agent.seat], agent.seat = -1, -1

    # -- acting --------------------------------------------------------------------------------

    def act(self, lanes: Collection[Any] | None = None) -> None:
        """Choose an action for those who wait, into `actions` of their lanes.

        Args:
            lanes: only for agents in these; None: for all.
        """
        agents, rows, seats, steps = self._due(lanes)
        if not agents:
            return
        noise = self._noise.next(seats, self._count[seats]) if self.explore else None
        columns = self.log.columns
        if self.views is None:
            actions, _, extras = self.policy.compute_actions(
                columns[col.OBS][rows], explore=self.explore, noise=noise
            )
        else:
            actions, states, extras = self.policy.compute_actions_from_input_dict(
                self._seen(self.views, rows, seats), explore=self.explore, noise=noise
            )
            outs = {f"{col.STATE_OUT_PREFIX}{k}": state for k, state in enumerate(states)}
            extras = {**extras, **outs}
        self.log.write(rows, {col.ACTIONS: actions, **extras})
        columns[names.TAKEN_AT][rows] = steps
        self._open[seats] = rows
        self._count[seats] += 1
        if self.views is not None and self.views.lookback:
            self._recent[seats, :-1] = self._recent[seats, 1:]
            self._recent[seats, -1] = rows
        for agent, action in zip(agents, self.to_env(actions), strict=True):
            agent.lane.actions[agent.id] = action

    def _due(self, lanes: Collection[Any] | None) -> tuple[list[AgentPlay], Array, Array, Array]:
        """Those who are to act now, their rows, seats and env steps; the others wait on."""
        due = self.waiting, self._rows, self._seats, self._steps
        if lanes is None:
            none = self._rows[:0]
            self.waiting, self._rows, self._seats, self._steps = [], none, none, none
            self._raw = []
            return due
        now = [i for i, agent in enumerate(self.waiting) if agent.lane in lanes]
        self._keep_waiting([i for i in range(len(self.waiting)) if i not in now])
        agents, rows, seats, steps = due
        return [agents[i] for i in now], rows[now], seats[now], steps[now]

    def _keep_waiting(self, which: list[int]) -> None:
        self.waiting = [self.waiting[i] for i in which]
        self._raw = [self._raw[i] for i in which]
        self._rows, self._seats = self._rows[which], self._seats[which]
        self._steps = self._steps[which]

    def to_env(self, actions: Any) -> Any:
        """From actions of the policy ``[k, ...]`` to k actions of the environment."""
        converted = actions if self.actions.identity else self.actions(np.asarray(actions))
        if self._plain_actions:
            return converted
        return iterate(batch_space(self.spaces[1], len(actions)), converted)

    def _seen(self, views: TrajectoryViews, rows: Array, seats: Array) -> dict[str, Array]:
        """What the policy sees, each ``[k, ...]`` or ``[k, n, ...]``."""
        past = views.lookback
        reachable = np.concatenate([self._recent[seats], rows[:, None]], axis=1)  # [k, P + 1]
        first = past - np.minimum(self._count[seats], past)[:, None]  # where the episode begins
        seen = {}
        for view in views.acting_views:
            wanted = past + view.steps[None, :]  # [1, n]
            inside = np.maximum(wanted, first)
            column = self._source(view.source)
            values = column[np.take_along_axis(reachable, inside, axis=1)]  # [k, n, ...]
            if view.fill is not None:
                values[wanted < first] = view.fill
            seen[view.name] = values if view.time_axis else values[:, 0]
        return seen

    def _source(self, name: str) -> Array:
        """A column that a view looks at; before the first step it has no values, only a shape."""
        if name not in self.log.columns:
            self.log.write(np.empty(0, np.int64), {name: source_rows(self.policy, name)})
        return self.log.columns[name]

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
        # What those who leave without an observation were led to is the last that they saw.
        left = [i for i, last in enumerate(news.last_observations) if last is not None]
        if news.leaving:
            seats = seats + [agent.seat for agent in news.leaving]
            raw = raw + [news.last_observations[i] for i in left]
            steps = steps + news.last_steps
        staying = len(news.staying)
        all_seats = np.array(seats)
        opened = self._open[all_seats]
        seen = np.r_[:staying, staying + np.array(left, np.int64)] if left else np.s_[:staying]
        following = opened.copy()
        if raw:
            following[seen] = rows = self._append(news, raw, all_seats[seen])
            self._rows = np.concatenate([self._rows, rows[:staying]])
        self.waiting += news.staying
        self._raw += news.observations
        self._seats = np.concatenate([self._seats, all_seats[:staying]])
        self._steps = np.concatenate([self._steps, np.array(steps[:staying], np.int64)])
        self._complete(news, all_seats, opened, following, np.array(steps))
        self._open[all_seats] = -1
        for agent in news.leaving:
            self._leave(agent)

    def _append(self, news: News, raw: list[Any], seats: Array) -> Array:
        """Log what agents on these seats see; returns their rows."""
        try:
            stacked = self._stack(raw)
        except (ValueError, TypeError, KeyError):
            stacked = None
        if stacked is None or self._is_bad(stacked):
            self._blame(news)
        processed = self.observations(stacked, update=self.filter_learns)
        place = self._place[seats]
        rows = self.log.append(processed, place[:, 0], place[:, 1])
        self.log.columns[names.EPISODE][rows] = place[:, 2]
        self.log.columns[names.OWN_STEP][rows] = self._count[seats]
        return rows

    def _blame(self, news: News) -> None:
        """Raise AgentFault for the first observation that is not in the space."""
        agents = news.staying + news.leaving
        observations = news.observations + news.last_observations
        steps = news.steps + news.last_steps
        for agent, observation, step in zip(agents, observations, steps, strict=True):
            problem = observation_problem(self.spaces[0], observation)
            if observation is not None and problem is not None:
                raise AgentFault(agent, problem, step - 1)

    def _complete(
        self, news: News, seats: Array, opened: Array, following: Array, steps: Array
    ) -> None:
        """The transitions of rows ``opened`` are complete; -1 for agents that have not acted."""
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
        known = opened >= 0
        if not self.rewards.identity:
            rewards = self._learned(rewards, flags, seats, known)
        rows = opened[known]
        columns = self.log.columns
        columns[names.NEXT][rows] = following[known]
        columns[names.DONE_AT][rows] = steps[known] - 1
        columns[col.REWARDS][rows] = rewards[known]
        columns[col.TERMINATEDS][rows] = flags[known, 0]
        columns[col.TRUNCATEDS][rows] = flags[known, 1]

    def _learned(self, rewards: Array, flags: Array, seats: Array, known: Array) -> Array:
        """What learning sees of the rewards ``[k]`` of these seats."""
        returns = self._returns[seats]
        learned = self.rewards(
            rewards,
            flags[:, 0],
            flags[:, 1],
            valid=known,
            update=self.filter_learns,
            returns=returns,
        )
        self._returns[seats] = returns
        return learned

    # -- fragments -----------------------------------------------------------------------------

    def deliver(
        self, running: Collection[int], *, runner_index: int, fragment: int, whole_episodes: bool
    ) -> SampleBatch | None:
        """The transitions of this fragment; None if there are none.

        Args:
            running: ids of the episodes that have not ended.
            whole_episodes: hold back transitions of those.
        """
        log = self.log
        held = np.zeros(log.size, np.bool_)
        if whole_episodes:
            held = np.isin(log.columns[names.EPISODE][: log.size], list(running))
        rows = log.transitions(held)
        if not len(rows):
            return None
        batch = to_batch(
            log,
            rows,
            runner_index=runner_index,
            fragment=fragment,
            further_columns=self.policy.fragment_columns,
            views=self.views,
        )
        log.columns[names.DELIVERED][rows] = True
        return batch

    def carry_over(self) -> None:
        """Drop what has been delivered, but for the past that views look back at."""
        log = self.log
        held = (log.columns[names.NEXT][: log.size] >= 0) & ~log.columns[names.DELIVERED][
            : log.size
        ]
        seated = np.setdiff1d(np.arange(len(self._open)), self._free)
        opened, recent = self._open[seated], self._recent[seated]
        rows = [np.flatnonzero(held), self._rows, opened[opened >= 0], recent[recent >= 0]]
        moved = log.keep(np.unique(np.concatenate(rows)))
        moved = np.append(moved, -1)  # what was -1 stays -1
        self._rows, self._open, self._recent = (
            moved[self._rows],
            moved[self._open],
            moved[self._recent],
        )

    def newly_taken(self, running: Collection[int]) -> list[tuple[int, int, Array, Array]]:
        """Actions of running episodes since the last call: lane, agent, env steps, actions."""
        columns, size = self.log.columns, self.log.size
        due = (columns[names.TAKEN_AT][:size] >= 0) & ~columns[names.RECORDED][:size]
        columns[names.RECORDED][:size] |= due
        due &= np.isin(columns[names.EPISODE][:size], list(running))
        rows = self.log.ordered(np.flatnonzero(due))
        if not len(rows):
            return []
        lanes, agents = columns[names.LANE][rows], columns[names.AGENT][rows]
        cuts = np.flatnonzero((np.diff(lanes) != 0) | (np.diff(agents) != 0)) + 1
        return [
            (
                int(columns[names.LANE][part[0]]),
                int(columns[names.AGENT][part[0]]),
                columns[names.TAKEN_AT][part],
                columns[col.ACTIONS][part],
            )
            for part in np.split(rows, cuts)
        ]

    def drop(self, agents: Collection[AgentPlay], episode_id: int) -> None:
        """Forget an episode that is given up, with these agents of this policy."""
        columns, size = self.log.columns, self.log.size
        columns[names.DELIVERED][:size] |= columns[names.EPISODE][:size] == episode_id
        self._keep_waiting([i for i, agent in enumerate(self.waiting) if agent not in agents])
        for agent in agents:
            if agent.seat >= 0:
                self._leave(agent)

    def forget(self) -> None:
        """Drop all transitions, but for the past that views look back at."""
        self.log.columns[names.DELIVERED][: self.log.size] = True
        self.carry_over()

    def for_play(self, explore: bool) -> PolicyActor:
        """An actor for play beside: the same policy and connectors, which learn nothing there."""
        twin = PolicyActor(self.policy, self.spaces, self.connectors)
        twin.explore, twin.filter_learns = explore, False
        return twin

    # -- state ---------------------------------------------------------------------------------

    def get_state(self, agents: list[AgentPlay]) -> dict[str, Any]:
        """Everything but the policy; ``agents`` are those who have seats."""
        seats = [agent.seat for agent in agents]
        raw = self.observations.preprocess(self._stack(self._raw)) if self._raw else None
        return {
            "log": self.log.get_state(),
            "agents": np.array([[agent.lane.index, agent.index] for agent in agents], np.int64),
            "open": self._open[seats],
            "count": self._count[seats],
            "returns": self._returns[seats],
            "recent": self._recent[seats],
            "waiting": np.array([[a.lane.index, a.index] for a in self.waiting], np.int64),
            "waiting_rows": self._rows.copy(),
            "unfiltered": raw,
            "connectors": self.connectors.get_state(),
        }

    def set_state(self, state: Mapping[str, Any], find: Callable[[int, int], AgentPlay]) -> None:
        """Take over what `get_state` returned.

        Args:
            find: the agent of a lane and an index; it has no seat yet.
        """
        self.log.set_state(state["log"])
        self.connectors.set_state(state["connectors"])
        counts = np.asarray(state["count"]).tolist()
        agents = [find(*place) for place in np.asarray(state["agents"]).tolist()]
        for agent, count in zip(agents, counts, strict=True):
            self.seat(agent, count)
        seats = [agent.seat for agent in agents]
        self._open[seats], self._recent[seats] = state["open"], state["recent"]
        self._returns[seats] = state["returns"]
        self.waiting = [find(*place) for place in np.asarray(state["waiting"]).tolist()]
        self._rows, self._raw = np.asarray(state["waiting_rows"]), []
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
            found = self.observations.preprocess(self._stack([raw[place]]))[0]
            if not np.array_equal(found, unfiltered[i]):
                strayed.add(agent.lane.index)
        return strayed


def source_rows(policy: Policy, name: str) -> Array:
    """No rows of a column that views look at, in its shape and type."""
    if name == col.ACTIONS:
        sampler = action_sampler(policy.action_space)
        return np.zeros((0, *sampler.shape), sampler.dtype)
    if name.startswith(col.STATE_OUT_PREFIX):
        state = policy.get_initial_state()[int(name.removeprefix(col.STATE_OUT_PREFIX))]
        return state[None][:0]
    views = policy.view_requirements.items()
    space = next((v.space for key, v in views if (v.data_col or key) == name), None)
    if isinstance(space, gym.spaces.Box):
        return np.zeros((0, *space.shape), space.dtype)
    return np.zeros(0, np.float32)


def _stacker(space: gym.Space[Any]) -> Callable[[list[Any]], Any]:
    """Puts observations of a space together, batched as gymnasium's vector environments do."""
    if isinstance(space, gym.spaces.Box):
        shape, dtype = space.shape, space.dtype

        def stack(observations: list[Any]) -> Array:
            stacked = np.asarray(observations)
            if stacked.shape[1:] != shape or stacked.dtype.kind == "O":
                raise ValueError(f"observations have shape {stacked.shape[1:]}, not {shape}")
            return stacked.astype(dtype, copy=False)

        return stack
    if isinstance(space, gym.spaces.Discrete):
        return lambda observations: np.asarray(observations, np.int64)
    empty: Any = create_empty_array
    return lambda observations: concatenate(space, observations, empty(space, len(observations)))
