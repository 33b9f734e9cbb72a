"""ReplayBuffer: the last transitions of all lanes, sampled uniformly, with n-step returns.

Transitions are numbered in the order in which they came; the number, not a place in memory, is
what names one. Each knows the number of the transition that followed it in its episode, so that
n-step returns go along an episode, however lanes and fragments were interleaved.

    n  rows of a sample      k  steps that an n-step return really took, 1 <= k <= n_step

| column of a sample | row shape | meaning |
|---|---|---|
| obs, actions | as stored | the first of the k steps |
| rewards | () float32 | r_0 + gamma r_1 + ... + gamma^(k-1) r_(k-1) |
| new_obs, terminateds, truncateds | as stored | of the last of the k steps |
| discounts | () float32 | gamma^k, what the value of new_obs counts; apply terminateds besides |
| item_ids | () int64 | the number of the first transition |

A return is cut where the episode ends (terminated or truncated) and at the newest transition of an
agent, which has no successor yet; it never runs on into what the ring holds in the next place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.replay.frame_store import FrameStore, are_stacks
from rlrun.replay.observation_store import ObservationStore

Array = NDArray[Any]

_STORED = (col.ACTIONS, col.REWARDS, col.TERMINATEDS, col.TRUNCATEDS)
_NONE = -1


class ReplayBuffer:
    """A ring of transitions.

    Args:
        capacity: transitions that are kept; each further one takes the place of the oldest.
        n_step: most steps of a return.
        gamma: discount between them.
        further_columns: to be kept besides those that single transitions need.
    """

    def __init__(
        self,
        capacity: int = 10_000,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        further_columns: Sequence[str] = (),
    ) -> None:
        if capacity < 1 or n_step < 1:
            raise ValueError(f"capacity {capacity} and n_step {n_step} must be at least 1")
        self.capacity, self.n_step, self.gamma = capacity, n_step, gamma
        self.num_added = 0
        self._stored = (*_STORED, *further_columns)
        self._columns: dict[str, Array] = {}
        self._observations: ObservationStore | FrameStore | None = None
        self._obs_slot = np.full(capacity, _NONE, dtype=np.int64)
        self._next_obs_slot = np.full(capacity, _NONE, dtype=np.int64)
        self._successor = np.full(capacity, _NONE, dtype=np.int64)
        # Episode and agent -> step within it and number of the newest transition.
        self._newest: dict[tuple[int, int], tuple[int, int]] = {}

    def __len__(self) -> int:
        return min(self.num_added, self.capacity)

    @property
    def size_bytes(self) -> int:
        """Bytes of the transitions held."""
        stored = sum(column[: len(self)].nbytes for column in self._columns.values())
        return stored + (self._observations.nbytes if self._observations else 0)

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
        self._require_some()
        return self.gather(self._oldest + rng.integers(len(self), size=num_items))

    @property
    def _oldest(self) -> int:
        return self.num_added - len(self)

    def _require_some(self) -> None:
        if not self.num_added:
            raise ValueError("an empty replay buffer cannot be sampled; add a batch first")

    def _add(self, batch: SampleBatch) -> None:
        count = len(batch)
        if not count:
            return
        storage, obs_index, next_index = _observations_of(batch)
        if self._observations is None:
            self._observations = ObservationStore(self.capacity, storage.shape[1:], storage.dtype)
            if are_stacks(storage[obs_index], storage[next_index]):
                self._observations = FrameStore(self.capacity, storage.shape[1:], storage.dtype)
            for name in self._stored:
                column = batch.column(name)
                self._columns[name] = np.empty((self.capacity, *column.shape[1:]), column.dtype)
        places = (self.num_added + np.arange(count)) % self.capacity
        self._forget(places)
        obs_index, earlier = self._link(batch, places, storage, obs_index, next_index)
        is_used = np.zeros(len(storage), dtype=np.bool_)
        is_used[obs_index] = is_used[next_index] = True
        used, position = np.flatnonzero(is_used), np.cumsum(is_used) - 1
        obs_position, next_position = position[obs_index], position[next_index]
        known = np.full(len(used), _NONE, dtype=np.int64)
        for row, before in earlier:
            known[obs_position[row]] = self._next_obs_slot[before % self.capacity]
        fresh = known == _NONE
        known[fresh] = self._observations.reserve(int(fresh.sum()))
        previous = np.full(len(used), _NONE, dtype=np.int64)
        previous[next_position] = known[obs_position]
        self._observations.fill(known[fresh], storage[used[fresh]], previous[fresh])
        for name, column in self._columns.items():
            column[places] = batch.column(name)
        self._obs_slot[places] = known[obs_position]
        self._next_obs_slot[places] = known[next_position]
        self._observations.refer(self._obs_slot[places])
        self._observations.refer(self._next_obs_slot[places])
        self.num_added += count

    def _forget(self, places: Array) -> None:
        """Give up what is about to be overwritten."""
        assert self._observations is not None
        old = places[self._obs_slot[places] != _NONE]
        slots = np.concatenate([self._obs_slot[old], self._next_obs_slot[old]])
        self._observations.release(slots)

    def _link(
        self,
        batch: SampleBatch,
        places: Array,
        storage: Array,
        obs_index: Array,
        next_index: Array,
    ) -> tuple[Array, list[tuple[int, int]]]:
        """Tell each transition what follows it; first rows may follow one added earlier.

        Returns:
            ``obs_index`` in which a row starts from the very observation that the row before it led
            to, even where the batch has it twice; and the rows that start from an observation the
            buffer has, each with the number of the transition that led to it.
        """
        follows = follows_row_before(batch)
        obs_index, linked = obs_index.copy(), np.flatnonzero(follows)
        obs_index[linked] = next_index[linked - 1]
        start = self.num_added
        self._successor[places] = _NONE
        self._successor[places[linked - 1]] = start + linked
        episodes, agents, steps = batch.column(col.EPS_ID), agents_of(batch), batch.column(col.T)
        ended = batch.column(col.TERMINATEDS) | batch.column(col.TRUNCATEDS)
        first_rows = np.flatnonzero(~follows)
        last_rows = np.append(first_rows[1:] - 1, len(places) - 1)
        oldest_kept = max(start + len(places) - self.capacity, 0)
        earlier: list[tuple[int, int]] = []
        for first, last in zip(first_rows.tolist(), last_rows.tolist(), strict=True):
            who = int(episodes[first]), int(agents[first])
            step, before = self._newest.pop(who, (_NONE, _NONE))
            gap = int(steps[first]) - step - 1
            if before >= oldest_kept and gap >= 0:
                known = None if before < start else next_index[before - start]
                # An agent may have been silent in between; its next step starts where it was.
                if not gap or np.array_equal(
                    self._observation_after(before) if known is None else storage[known],
                    storage[obs_index[first]],
                ):
                    self._successor[before % self.capacity] = start + first
                    if known is None:
                        earlier.append((first, before))
                    else:
                        obs_index[first] = known
            if not ended[last]:
                self._newest[who] = int(steps[last]), start + last
        # Of an episode that never ends, because its environment was lost, nothing is left one day.
        self._newest = {who: at for who, at in self._newest.items() if at[1] >= oldest_kept}
        return obs_index, earlier

    def _observation_after(self, number: int) -> Array:
        """What the transition of this number, which is held, led to."""
        assert self._observations is not None
        place = number % self.capacity
        return self._observations[self._next_obs_slot[place : place + 1]][0]

    def gather(self, ids: Array) -> SampleBatch:
        """The transitions of these numbers, which must be held, with their n-step returns."""
        assert self._observations is not None
        first = ids % self.capacity
        columns = self._columns
        terminateds, truncateds = columns[col.TERMINATEDS], columns[col.TRUNCATEDS]
        rewards = columns[col.REWARDS]
        last = first
        returns = rewards[first].astype(np.float64)
        discounts = np.full(len(ids), self.gamma)
        for _ in range(self.n_step - 1):
            successor = self._successor[last]
            goes_on = successor != _NONE
            last = np.where(goes_on, successor % self.capacity, last)
            returns += np.where(goes_on, discounts * rewards[last], 0.0)
            discounts = np.where(goes_on, discounts * self.gamma, discounts)
        return SampleBatch.from_columns(
            {
                col.OBS: self._observations[self._obs_slot[first]],
                col.ACTIONS: columns[col.ACTIONS][first],
                col.REWARDS: returns.astype(np.float32),
                col.NEXT_OBS: self._observations[self._next_obs_slot[last]],
                col.TERMINATEDS: terminateds[last],
                col.TRUNCATEDS: truncateds[last],
                col.DISCOUNTS: discounts.astype(np.float32),
                col.ITEM_IDS: ids,
            }
        )

    def _runs(self, first: Array, length: int) -> tuple[Array, Array]:
        """Transitions that follow one another, from each of ``first`` ``[S]`` on.

        A run ends with its episode, with the newest transition of a lane, or after ``length``.

        Returns:
            Their numbers, run after run, and how many of them each run has, ``[S]``.
        """
        runs = np.full((len(first), length), _NONE, dtype=np.int64)
        runs[:, 0] = first
        for step in range(1, length):
            before = runs[:, step - 1]
            successor = self._successor[before % self.capacity]
            runs[:, step] = np.where(before == _NONE, _NONE, successor)
        there = runs != _NONE
        return runs[there], there.sum(axis=1)

    def _rows(self, ids: Array) -> dict[str, Array]:
        """The transitions of these numbers as they were added."""
        assert self._observations is not None
        places = ids % self.capacity
        return {
            col.OBS: self._observations[self._obs_slot[places]],
            col.NEXT_OBS: self._observations[self._next_obs_slot[places]],
            col.ITEM_IDS: ids,
            **{name: column[places] for name, column in self._columns.items()},
        }

    def get_state(self) -> dict[str, Any]:
        """All that is held, as arrays from the oldest transition to the newest."""
        state: dict[str, Any] = {"num_added": self.num_added}
        if self._observations is None:
            return state
        places = np.arange(self._oldest, self.num_added) % self.capacity
        slots = np.concatenate([self._obs_slot[places], self._next_obs_slot[places]])
        used, positions = np.unique(slots, return_inverse=True)
        newest = [(*who, *at) for who, at in self._newest.items()]
        return {
            **state,
            "columns": {name: column[places] for name, column in self._columns.items()},
            "observations": self._observations.get_state(used),
            "obs": positions[: len(places)],
            "new_obs": positions[len(places) :],
            "successor": self._successor[places],
            "newest": np.array(newest, dtype=np.int64).reshape(-1, 4),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` of a buffer of the same capacity returned."""
        self.num_added = int(state["num_added"])
        self._observations = None
        self._newest.clear()
        for slots in (self._obs_slot, self._next_obs_slot, self._successor):
            slots[:] = _NONE
        if "columns" not in state:
            return
        places = np.arange(self._oldest, self.num_added) % self.capacity
        for name, held in state["columns"].items():
            self._columns[name] = np.empty((self.capacity, *held.shape[1:]), held.dtype)
            self._columns[name][places] = held
        observations = state["observations"]
        rows = observations["rows"]
        self._observations = ObservationStore(self.capacity, rows.shape[1:], rows.dtype)
        if "stacks" in observations:
            shape = (observations["stacks"].shape[1], *rows.shape[1:])
            self._observations = FrameStore(self.capacity, shape, rows.dtype)
        slots = self._observations.set_state(observations)
        self._obs_slot[places] = slots[state["obs"]]
        self._next_obs_slot[places] = slots[state["new_obs"]]
        self._observations.refer(self._obs_slot[places])
        self._observations.refer(self._next_obs_slot[places])
        self._successor[places] = state["successor"]
        for episode, agent, step, newest in state["newest"].tolist():
            self._newest[episode, agent] = (step, newest)

    def check_valid(self) -> None:
        """Raise AssertionError where the books are wrong; tests call it after each operation."""
        if self._observations is None:
            return
        ids = np.arange(self._oldest, self.num_added)
        places = ids % self.capacity
        referring = np.concatenate([self._obs_slot[places], self._next_obs_slot[places]])
        self._observations.check_valid(referring)
        followed = self._successor[places] != _NONE
        successors = self._successor[places][followed]
        assert (successors > ids[followed]).all(), "a successor came earlier"
        assert (successors < self.num_added).all(), "a successor does not exist"
        shared = self._obs_slot[successors % self.capacity]
        assert np.array_equal(shared, self._next_obs_slot[places][followed]), (
            "a frame is kept twice"
        )


def _observations_of(batch: SampleBatch) -> tuple[Array, Array, Array]:
    """One storage ``[M, ...]`` and the rows of it that are obs and new_obs, each ``[n]``."""
    shared, shared_next = batch.shared(col.OBS), batch.shared(col.NEXT_OBS)
    if shared is not None and shared_next is not None and shared[0] is shared_next[0]:
        return shared[0], shared[1], shared_next[1]
    index = np.arange(len(batch))
    return np.concatenate([batch[col.OBS], batch[col.NEXT_OBS]]), index, index + len(batch)


def agents_of(batch: SampleBatch) -> Array:
    """Which agent of its episode each row ``[n]`` is of; 0 where there is one only."""
    if col.AGENT_INDEX in batch:
        return batch.column(col.AGENT_INDEX)
    return np.zeros(len(batch), dtype=np.int64)


def follows_row_before(batch: SampleBatch) -> Array:
    """Whether each row ``[n]`` is what the same agent did next, in the same episode and fragment.

    A fragment has all that an agent did in it, so steps of the environment in between are those in
    which the agent was silent.
    """
    unroll, episode, step = (batch.column(name) for name in (col.UNROLL_ID, col.EPS_ID, col.T))
    ended = batch.column(col.TERMINATEDS) | batch.column(col.TRUNCATEDS)
    follows = np.zeros(len(batch), dtype=np.bool_)
    follows[1:] = (
        (unroll[1:] == unroll[:-1])
        & (episode[1:] == episode[:-1])
        & (step[1:] > step[:-1])
        & ~ended[:-1]
    )
    return follows
