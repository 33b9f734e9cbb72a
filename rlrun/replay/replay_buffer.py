"""ReplayBuffer: the last transitions of all sub-environments, sampled uniformly, n-step returns.

Transitions are numbered in the order in which they are added, and identified by this number. Each
has the number of its successor, the agent's next transition in the episode, along which n-step
returns are summed up, however sub-environments and fragments are interleaved.

    n  rows of a batch       k  steps of an n-step return, 1 <= k <= n_step

| column of a sample | row shape | meaning |
|---|---|---|
| obs, actions | as stored | the first of the k steps |
| rewards | () float32 | r_0 + gamma r_1 + ... + gamma^(k-1) r_(k-1) |
| new_obs, terminateds, truncateds | as stored | of the last of the k steps |
| discounts | () float32 | gamma^k, the weight of the value of new_obs where not terminated |
| item_ids | () int64 | the number of the first transition |

A return has fewer than n_step steps where the episode ends (terminated or truncated), and where an
agent's newest transition has no successor yet.

Two fragments of one agent, which are the first in a buffer; episode 0 ends with transition 4:

    fragment               first          second
    number               0   1   2      3   4   5
    episode              0   0   0      0   0   1
    step                 0   1   2      3   4   0
    observation          a   b   c      d   e   x
    next observation     b   c   d      e   f   y
    _obs_slot            0   1   2      3   5   4
    _next_obs_slot       1   2   3      5   6   7
    _successor           1   2   3      4  -1  -1

A transition's next observation and its successor's observation share a slot. The successor of 2
is -1 until the second fragment is added. Then 2 is found in ``_newest``, (episode, agent) ->
(step, number): ``{(0, 0): (2, 2)}`` after the first fragment, ``{(1, 0): (0, 5)}`` after both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlrun.data import columns as col
from rlrun.data.column_data import Array
from rlrun.data.sample_batch import SampleBatch
from rlrun.replay.observation_store import ObservationStore, restored_store, store_for

_STORED = (col.ACTIONS, col.REWARDS, col.TERMINATEDS, col.TRUNCATEDS)
NONE = -1  # in place of the number of a transition, or of a slot

InOneStorage = tuple[Any, Array, Array]
"""Observations, and the indices ``[n]`` of `obs` and of `new_obs` among them."""


class TransitionBuffer:
    """Columns of transitions, which are numbered in the order in which they were added.

    Args:
        capacity: most transitions that are kept.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity {capacity} must be at least 1")
        self.capacity = capacity
        self.num_added = 0
        self._columns: dict[str, Array] = {}

    def __len__(self) -> int:
        return min(self.num_added, self.capacity)

    def _num_sampled_from(self) -> int:
        """Transitions held; raises ValueError if there are none."""
        if not self.num_added:
            raise ValueError("an empty replay buffer cannot be sampled; add a batch first")
        return min(self.num_added, self.capacity)

    def _write(self, places: Array, columns: Mapping[str, Array]) -> None:
        """Copy rows ``[n, ...]`` to places ``[n]``; the first rows of a name create its column."""
        for name, rows in columns.items():
            if name not in self._columns:
                self._columns[name] = np.empty((self.capacity, *rows.shape[1:]), rows.dtype)
            self._columns[name][places] = rows

    def _read(self, places: Array | slice) -> dict[str, Array]:
        return {name: column[places] for name, column in self._columns.items()}


class ReplayBuffer(TransitionBuffer):
    """A ring of transitions; an observation that two of them share is kept once.

    Args:
        capacity: transitions that are kept; each further one replaces the oldest.
        n_step: most steps of a return.
        gamma: discount of one step.
        further_columns: columns to keep besides those that single transitions need.
    """

    def __init__(
        self,
        capacity: int = 10_000,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        further_columns: Sequence[str] = (),
    ) -> None:
        super().__init__(capacity)
        if n_step < 1:
            raise ValueError(f"n_step {n_step} must be at least 1")
        self.n_step, self.gamma = n_step, gamma
        self._stored = (*_STORED, *further_columns)
        self._observations: ObservationStore  # as soon as there are columns
        self._obs_slot = np.full(capacity, NONE, dtype=np.int64)
        self._next_obs_slot = np.full(capacity, NONE, dtype=np.int64)
        self._successor = np.full(capacity, NONE, dtype=np.int64)
        # Episode and agent -> step and number of the newest transition; of unfinished episodes.
        self._newest: dict[tuple[int, int], tuple[int, int]] = {}

    @property
    def size_bytes(self) -> int:
        """Bytes of the transitions held."""
        stored = sum(column.nbytes for column in self._read(slice(len(self))).values())
        return stored + (self._observations.nbytes if self._columns else 0)

    @property
    def can_be_sampled(self) -> bool:
        """Whether there is anything to sample."""
        return self.num_added > 0

    def add(self, batch: SampleBatch) -> None:
        """Append all rows; the batch itself is not kept."""
        if len(batch) <= self.capacity:
            self._add(batch)
            return
        for begin in range(0, len(batch), self.capacity):
            self._add(batch.slice(begin, min(begin + self.capacity, len(batch))))

    def sample(self, num_items: int, rng: np.random.Generator) -> SampleBatch:
        """Uniformly drawn transitions, with replacement.

        Raises:
            ValueError: when nothing has been added yet.
        """
        size = self._num_sampled_from()
        return self.gather(self.num_added - size + rng.integers(size, size=num_items))

    @property
    def _oldest(self) -> int:
        return self.num_added - len(self)

    @property
    def _places(self) -> Array:
        """Places of all transitions held, from the oldest to the newest."""
        return np.arange(self._oldest, self.num_added) % self.capacity

    def _add(self, batch: SampleBatch) -> None:
        count = len(batch)
        if not count:
            return
        observations = batch.in_one_storage(col.OBS, col.NEXT_OBS)
        if not self._columns:
            storage, obs_index, next_index = observations
            self._observations = store_for(self.capacity, storage[obs_index], storage[next_index])
        places = (self.num_added + np.arange(count)) % self.capacity
        if self.num_added + count > self.capacity:
            self._release(places)
        follows, chunks = chunks_of(batch)
        predecessors = self._link(places, follows, chunks, observations)
        slots = self._store_observations(follows, predecessors, observations)
        self._write(places, dict(zip(self._stored, batch.columns(self._stored), strict=True)))
        self._refer(places, *slots)
        self.num_added += count

    def _link(
        self, places: Array, follows: Array, chunks: Sequence[Chunk], observations: InOneStorage
    ) -> dict[int, int]:
        """Set the successors of new transitions, and of earlier ones that new ones follow.

        Returns:
            First row of each chunk -> number of the transition whose next observation is the row's
            observation, or -1.
        """
        storage, obs_index, next_index = observations
        start, following_rows = self.num_added, follows.nonzero()[0]
        self._successor[places] = NONE
        self._successor[places[following_rows - 1]] = start + following_rows
        oldest_kept = max(start + len(places) - self.capacity, 0)
        predecessors: dict[int, int] = {}
        for chunk in chunks:
            predecessors[chunk.first] = NONE
            step, newest = self._newest.pop(chunk.key, (NONE, NONE))
            if newest >= oldest_kept and step < chunk.first_step:
                place = newest % self.capacity
                if newest >= start:  # it is in this batch
                    next_obs = storage[next_index[newest - start]]
                else:
                    next_obs = self._observations[self._next_obs_slot[place : place + 1]][0]
                is_same = np.array_equal(next_obs, storage[obs_index[chunk.first]])
                if is_same:
                    predecessors[chunk.first] = newest
                # With the same observation after a gap, the agent did not act in between.
                if is_same or step + 1 == chunk.first_step:
                    self._successor[place] = start + chunk.first
            if not chunk.ended:
                self._newest[chunk.key] = chunk.last_step, start + chunk.last
        if oldest_kept:
            # An episode never ends if its environment was lost: drop it once it is overwritten.
            self._newest = {key: at for key, at in self._newest.items() if at[1] >= oldest_kept}
        return predecessors

    def _store_observations(
        self, follows: Array, predecessors: Mapping[int, int], observations: InOneStorage
    ) -> tuple[Array, Array]:
        """Store the observations of new transitions, each once.

        Args:
            predecessors: see `_link`.

        Returns:
            The slots of their observations and of their next observations, each ``[n]``.
        """
        storage, obs_index, next_index = observations
        # A row that follows the row before has its next observation, unless code has changed it.
        changed = (follows[1:] & (obs_index[1:] != next_index[:-1])).nonzero()[0] + 1
        if len(changed):
            unchanged = storage[next_index[changed - 1]]
            changed = changed[_differ(unchanged, storage[obs_index[changed]])]
        # Rows whose observation is no transition's next observation, and needs a slot of its own.
        unshared = [*changed, *[row for row, number in predecessors.items() if number == NONE]]
        slots = self._observations.reserve(len(unshared) + len(follows))
        previous_slots = np.full(len(slots), NONE)
        obs_slots, next_slots = previous_slots[len(unshared) :], slots[len(unshared) :]
        obs_slots[1:] = next_slots[:-1]
        obs_slots[unshared] = slots[: len(unshared)]
        for row, number in predecessors.items():
            if number >= self.num_added:
                obs_slots[row] = next_slots[number - self.num_added]
            elif number != NONE:
                obs_slots[row] = self._next_obs_slot[number % self.capacity]
        index = np.concatenate([obs_index[unshared], next_index])
        self._observations.fill(slots, storage[index], previous_slots)
        return obs_slots, next_slots

    def _refer(self, places: Array, obs_slots: Array, next_obs_slots: Array) -> None:
        """Let transitions refer to the slots of their observations."""
        self._obs_slot[places], self._next_obs_slot[places] = obs_slots, next_obs_slots
        self._observations.refer(np.concatenate([obs_slots, next_obs_slots]))

    def _release(self, places: Array) -> None:
        """Release the observations of transitions that are about to be overwritten."""
        old = places[self._obs_slot[places] != NONE]
        slots = np.concatenate([self._obs_slot[old], self._next_obs_slot[old]])
        self._observations.release(slots)

    def gather(self, ids: Array) -> SampleBatch:
        """The transitions of these numbers, which must be held, with their n-step returns."""
        first, columns = ids % self.capacity, self._columns
        returns, discounts, last = n_step_returns(
            columns[col.REWARDS], self._successor, first, self.n_step, self.gamma
        )
        return SampleBatch.from_columns(
            {
                col.OBS: self._observations[self._obs_slot[first]],
                col.ACTIONS: columns[col.ACTIONS][first],
                col.REWARDS: returns,
                col.NEXT_OBS: self._observations[self._next_obs_slot[last]],
                col.TERMINATEDS: columns[col.TERMINATEDS][last],
                col.TRUNCATEDS: columns[col.TRUNCATEDS][last],
                col.DISCOUNTS: discounts,
                col.ITEM_IDS: ids,
            }
        )

    def _sequences(self, first: Array, length: int) -> tuple[Array, Array]:
        """Sequences of successors that begin with the transitions ``first`` ``[S]``.

        A sequence ends with its episode, with an agent's newest transition, or after ``length``.

        Returns:
            Numbers of the transitions, sequence after sequence, and lengths of sequences ``[S]``.
        """
        numbers = np.full((len(first), length), NONE, dtype=np.int64)
        numbers[:, 0] = first
        for step in range(1, length):
            before = numbers[:, step - 1]
            successor = self._successor[before % self.capacity]
            numbers[:, step] = np.where(before == NONE, NONE, successor)
        there = numbers != NONE
        return numbers[there], there.sum(axis=1)

    def _rows(self, ids: Array) -> dict[str, Array]:
        """The transitions of these numbers as they were added."""
        places = ids % self.capacity
        return {
            col.OBS: self._observations[self._obs_slot[places]],
            col.NEXT_OBS: self._observations[self._next_obs_slot[places]],
            col.ITEM_IDS: ids,
            **self._read(places),
        }

    def get_state(self) -> dict[str, Any]:
        """All transitions, as arrays from the oldest to the newest."""
        state: dict[str, Any] = {"num_added": self.num_added}
        if not self._columns:
            return state
        places = self._places
        slots = np.concatenate([self._obs_slot[places], self._next_obs_slot[places]])
        used, positions = np.unique(slots, return_inverse=True)
        newest = [(*key, *at) for key, at in self._newest.items()]
        return {
            **state,
            "columns": self._read(places),
            "observations": self._observations.get_state(used),
            "obs": positions[: len(places)],
            "new_obs": positions[len(places) :],
            "successor": self._successor[places],
            "newest": np.array(newest, dtype=np.int64).reshape(-1, 4),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of a buffer of the same capacity.

        Raises:
            ValueError: the buffer had another capacity, and transitions beyond one of the two.
        """
        self.num_added = int(state["num_added"])
        stored = len(state.get("obs", ()))
        if stored != self.num_added - self._oldest:
            raise ValueError(
                f"replay.capacity is {self.capacity}, but its replay buffer has {stored} "
                f"transitions of another capacity; set it to {stored}"
            )
        self._columns = {}
        self._newest.clear()
        for slots in (self._obs_slot, self._next_obs_slot, self._successor):
            slots[:] = NONE
        if "columns" not in state:
            return
        places = self._places
        self._write(places, state["columns"])
        self._observations, slots = restored_store(self.capacity, state["observations"])
        self._refer(places, slots[state["obs"]], slots[state["new_obs"]])
        self._successor[places] = state["successor"]
        for episode, agent, step, newest in state["newest"].tolist():
            self._newest[episode, agent] = (step, newest)

    def check_valid(self) -> None:
        """Raise AssertionError if the buffer contradicts itself; for tests."""
        if not self._columns:
            return
        ids, places = np.arange(self._oldest, self.num_added), self._places
        referring = np.concatenate([self._obs_slot[places], self._next_obs_slot[places]])
        self._observations.check_valid(referring)
        followed = self._successor[places] != NONE
        successors = self._successor[places][followed]
        assert (successors > ids[followed]).all(), "a successor came earlier"
        assert (successors < self.num_added).all(), "a successor does not exist"
        shared = self._obs_slot[successors % self.capacity]
        following = self._next_obs_slot[places][followed]
        twice = np.flatnonzero(shared != following)
        kept = self._observations[shared[twice]], self._observations[following[twice]]
        assert not len(twice) or _differ(*kept).all(), "an observation is kept twice"


def n_step_returns(
    rewards: Array, successors: Array, first: Array, n_step: int, gamma: float
) -> tuple[Array, Array, Array]:
    """Discounted sums of rewards over at most ``n_step`` successive steps.

    Args:
        rewards: ``[N]``.
        successors: number of each step's successor, ``[N]``, or -1; its place is that modulo N.
        first: places ``[n]`` of the first steps.

    Returns:
        The sums and the discounts of the values after them, float32 ``[n]``; places ``[n]`` of the
        last steps.
    """
    last, returns = first, rewards[first].astype(np.float64)
    discounts = np.full(len(first), gamma)
    for _ in range(n_step - 1):
        successor = successors[last]
        continues = successor != NONE
        last = np.where(continues, successor % len(rewards), last)
        returns += np.where(continues, discounts * rewards[last], 0.0)
        discounts = np.where(continues, discounts * gamma, discounts)
    return returns.astype(np.float32), discounts.astype(np.float32), last


def _differ(first: Array, second: Array) -> Array:
    """Which of the rows ``[n, ...]`` are not equal to the bit, ``[n]``; n is at least 1."""
    first, second = (rows.reshape(len(rows), -1).view(np.uint8) for rows in (first, second))
    return (first != second).any(axis=1)


class Chunk(NamedTuple):
    """Rows of a batch that are an agent's steps in one episode and fragment, in their order.

    A fragment has all steps of an agent, so at env steps in between the agent did not act.
    """

    first: int  # row
    last: int  # row
    key: tuple[int, int]  # episode and agent
    first_step: int
    last_step: int
    ended: bool


def chunks_of(batch: SampleBatch) -> tuple[Array, list[Chunk]]:
    """Whether each row ``[n]`` follows the row before in its chunk; and the chunks."""
    unrolls, episodes, steps, terminateds, truncateds = batch.columns(
        (col.UNROLL_ID, col.EPS_ID, col.T, col.TERMINATEDS, col.TRUNCATEDS)
    )
    ended = terminateds | truncateds
    follows = np.zeros(len(steps), dtype=np.bool_)
    follows[1:] = (
        (unrolls[1:] == unrolls[:-1])
        & (episodes[1:] == episodes[:-1])
        & (steps[1:] > steps[:-1])
        & ~ended[:-1]
    )
    firsts = (~follows).nonzero()[0].tolist()
    lasts = [row - 1 for row in firsts[1:]] + [len(steps) - 1]
    agents = batch.column(col.AGENT_INDEX) if col.AGENT_INDEX in batch else None
    keys = [(int(episodes[row]), 0 if agents is None else int(agents[row])) for row in firsts]
    return follows, [
        Chunk(first, last, key, int(steps[first]), int(steps[last]), bool(ended[last]))
        for first, last, key in zip(firsts, lasts, keys, strict=True)
    ]
