"""CollectedAgents: each agent's trajectory in a `SampleCollector` of its own, whichever that is.

A collector is made for lanes that step together; one agent of one lane is such a lane. What only
several agents have (the lane, the agent, env steps in which it was silent) is known here, and laid
over what the collectors build. Slower than `LoggedAgents`, with the same batches.

    k  agents of a step    n  steps of one agent    N  rows of the finished batch
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch, concat_samples
from rlrun.data.sample_collector import SampleCollector
from rlrun.sampling.agent_store import AgentStore, Delivery, Heard, name_pieces
from rlrun.sampling.policy_inputs import PolicyInputs

Array = NDArray[Any]

_ONLY_LANE = np.zeros(1, np.int64)


@dataclass
class _Step:
    """A complete transition; arrays are ``[1, ...]``."""

    action: Array
    extras: dict[str, Array]
    reward: Array
    learned: Array
    terminated: Array
    truncated: Array
    obs: Array
    """What it led to."""
    info: dict[str, Any] | None
    t: int
    """Env step of the episode that completed it."""


@dataclass
class _Trajectory:
    """What one agent of one lane lives through, episode after episode."""

    collector: SampleCollector
    episode_id: int = -1
    open: bool = False
    """Whether the collector waits for more of the episode."""
    action: Array | None = None
    """One that has not been answered, ``[1, ...]``."""
    extras: dict[str, Array] = field(default_factory=dict)
    last: _Step | None = None
    """Of an agent that has left. Its collector hears of it as late as possible: others may go on,
    and the episode with them, and it may still be given up."""
    steps: list[tuple[int, int]] = field(default_factory=list)
    """Episode id and env step of each transition that has not been delivered."""

    def add(self, step: _Step) -> None:
        """Hand a transition to the collector."""
        self.steps.append((self.episode_id, step.t))
        self.collector.add_step(
            step.action,
            step.extras,
            step.reward,
            step.terminated,
            step.truncated,
            step.obs,
            learned_rewards=step.learned,
            infos=None if step.info is None else {0: step.info},
        )

    def finish(self) -> None:
        """Hand over the last transition of an agent that has left, and the end with it."""
        if self.last is not None:
            self.add(self.last)
            self.collector.end_episodes(_ONLY_LANE)
            self.open, self.last = False, None

    def drop(self) -> None:
        """Forget the episode, as far as it has not been delivered."""
        if self.open:
            self.collector.drop_episode(0)
        self.open, self.last, self.action = False, None, None
        self.steps = [step for step in self.steps if step[0] != self.episode_id]


class CollectedAgents(AgentStore):
    """See the module, and `AgentStore` for what each method is asked for.

    Args:
        make: a collector for one lane.
    """

    def __init__(self, inputs: PolicyInputs, make: Callable[[], SampleCollector]) -> None:
        super().__init__(inputs)
        self._make = make
        self._by_place: dict[tuple[int, int], _Trajectory] = {}
        self._by_seat: dict[int, _Trajectory] = {}
        self._in_fragment = False
        self._put_out: list[str] = []  # columns of the policy
        self.set_views()

    def set_views(self) -> None:
        super().set_views()
        for trajectory in self._by_place.values():
            trajectory.collector.set_views(self.inputs.views, self.inputs.rows)

    def begin_fragment(self) -> None:
        self._in_fragment = True
        for trajectory in self._by_place.values():
            self._begin_fragment_of(trajectory.collector)

    def _begin_fragment_of(self, collector: SampleCollector) -> None:
        collector.ignored = self.ignored
        collector.begin_fragment(None, _ONLY_LANE)

    def _at(self, lane: int, agent: int) -> _Trajectory:
        """The agent's, which is made if it is the first time that it is heard of."""
        found = self._by_place.get((lane, agent))
        if found is None:
            found = self._by_place[lane, agent] = _Trajectory(self._make())
            found.collector.set_views(self.inputs.views, self.inputs.rows)
            if self._in_fragment:
                self._begin_fragment_of(found.collector)
        return found

    def seen(self, seats: Array) -> Any:
        collectors = [self._by_seat[seat].collector for seat in seats.tolist()]
        if self.inputs.views is None:
            return np.concatenate([collector.obs for collector in collectors])
        seen = [collector.get_inference_input_dict() for collector in collectors]
        return {name: np.concatenate([each[name] for each in seen]) for name in seen[0]}

    def act(self, seats: Array, actions: Array, extras: Mapping[str, Array]) -> None:
        self._put_out = [col.ACTIONS, *(name for name in extras if name not in self.ignored)]
        columns = {name: np.asarray(values) for name, values in extras.items()}
        for i, seat in enumerate(seats.tolist()):
            trajectory = self._by_seat[seat]
            trajectory.action = np.array(actions[i : i + 1])
            trajectory.extras = {name: rows[i : i + 1].copy() for name, rows in columns.items()}

    def hear(self, heard: Heard) -> None:
        seen = dict(zip(heard.observed.tolist(), heard.observations, strict=True))
        seats = heard.seats.tolist()
        # Who leaves goes first: a place may be taken again, in the next episode, within the step.
        for i in range(heard.staying, len(seats)):
            trajectory = self._by_seat[seats[i]]
            trajectory.last = _step(trajectory, heard, i, seen.get(i))
        for i, seat in enumerate(seats[: heard.staying]):
            if seat in self._by_seat:
                self._by_seat[seat].add(_step(self._by_seat[seat], heard, i, seen[i]))
            else:
                self._join(seat, seen[i])

    def _join(self, seat: int, obs: Array) -> None:
        lane, agent, episode_id = self.places[seat].tolist()
        trajectory = self._by_seat[seat] = self._at(lane, agent)
        trajectory.finish()
        trajectory.episode_id, trajectory.open = episode_id, True
        trajectory.collector.add_init_obs(_ONLY_LANE, np.array([episode_id]), obs[None])

    def leave(self, seat: int) -> None:
        del self._by_seat[seat]

    def drop(self, seats: Collection[int], lane: int, episode_id: int) -> None:
        for seat in seats:
            del self._by_seat[seat]
        for (of_lane, _), trajectory in self._by_place.items():
            if of_lane == lane and trajectory.episode_id == episode_id:
                trajectory.drop()

    def deliver(self, delivery: Delivery) -> SampleBatch | None:
        self._in_fragment = False
        batches = []
        for place in sorted(self._by_place):
            trajectory = self._by_place[place]
            if not delivery.whole_episodes or trajectory.episode_id not in delivery.running:
                trajectory.finish()
            batch = trajectory.collector.build()
            if len(batch):
                batches.append(_placed(batch, place, trajectory))
        if not batches:
            return None
        batch = concat_samples(batches)
        assert isinstance(batch, SampleBatch)
        batch[col.UNROLL_ID] = name_pieces(batch, delivery)
        if delivery.further_columns is not None:
            put_out = {name: batch[name] for name in self._put_out if name in batch}
            for name, column in delivery.further_columns(put_out).items():
                batch[name] = column
        for name in delivery.leave_out & batch.keys():
            del batch[name]
        return batch

    def get_state(self, seats: Sequence[int]) -> dict[str, Any]:
        return {
            "places": np.array([*self._by_place], np.int64).reshape(-1, 2),
            "trajectories": [_state_of(each) for each in self._by_place.values()],
            "put_out": self._put_out,
        }

    def set_state(self, state: Mapping[str, Any], seats: Sequence[int]) -> None:
        self._put_out = [str(name) for name in state["put_out"]]
        self._by_place = {}
        for (lane, agent), one in zip(
            np.asarray(state["places"]).tolist(), state["trajectories"], strict=True
        ):
            _restore(self._at(lane, agent), one)
        places = {seat: tuple(self.places[seat, :2].tolist()) for seat in seats}
        self._by_seat = {seat: self._by_place[place] for seat, place in places.items()}


def _placed(batch: SampleBatch, place: tuple[int, int], trajectory: _Trajectory) -> SampleBatch:
    """The batch with what its collector cannot know."""
    count = len(batch)
    steps, trajectory.steps = trajectory.steps[:count], trajectory.steps[count:]
    batch[col.T] = np.array([step for _, step in steps], np.int64)
    batch[col.ENV_ID], batch[col.AGENT_INDEX] = np.full(count, place[0]), np.full(count, place[1])
    return batch


def _step(trajectory: _Trajectory, heard: Heard, i: int, obs: Array | None) -> _Step:
    """What the i-th who was heard of has lived through; ``obs`` None: its last one stands in."""
    assert trajectory.action is not None
    step = _Step(
        action=trajectory.action,
        extras=trajectory.extras,
        reward=heard.rewards[i : i + 1],
        learned=heard.learned[i : i + 1],
        terminated=heard.flags[i : i + 1, 0],
        truncated=heard.flags[i : i + 1, 1],
        obs=trajectory.collector.obs.copy() if obs is None else obs[None],
        info=None if heard.infos is None else dict(heard.infos[i]),
        t=int(heard.steps[i]) - 1,
    )
    trajectory.action, trajectory.extras = None, {}
    return step


def _state_of(trajectory: _Trajectory) -> dict[str, Any]:
    return {
        "collector": trajectory.collector.get_state(),
        "episode_id": trajectory.episode_id,
        "open": trajectory.open,
        "action": trajectory.action,
        "extras": trajectory.extras,
        "last": None if trajectory.last is None else vars(trajectory.last),
        "steps": np.array(trajectory.steps, np.int64).reshape(-1, 2),
    }


def _restore(trajectory: _Trajectory, state: Mapping[str, Any]) -> None:
    trajectory.collector.set_state(state["collector"])
    trajectory.episode_id, trajectory.open = int(state["episode_id"]), bool(state["open"])
    trajectory.action = None if state["action"] is None else np.asarray(state["action"])
    trajectory.extras = {name: np.asarray(rows) for name, rows in state["extras"].items()}
    trajectory.last = None if state["last"] is None else _Step(**state["last"])
    trajectory.steps = [(episode, step) for episode, step in np.asarray(state["steps"]).tolist()]
