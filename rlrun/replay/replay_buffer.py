"""ReplayBuffer: the last transitions of all sub-environments, sampled uniformly, n-step returns.

Transitions are numbered in the order in which they were added; this number identifies a transition
wherever it lies in memory. Each has the number of the transition that followed it in its episode,
so that n-step returns go along an episode, however sub-environments and fragments were interleaved.

    n  rows of a sample      k  steps that an n-step return really took, 1 <= k <= n_step

| column of a sample | row shape | meaning |
|---|---|---|
| obs, actions | as stored | the first of the k steps |
| rewards | () float32 | r_0 + gamma r_1 + ... + gamma^(k-1) r_(k-1) |
| new_obs, terminateds, truncateds | as stored | of the last of the k steps |
| discounts | () float32 | gamma^k, the weight of the value of new_obs where not terminated |
| item_ids | () int64 | the number of the first transition |

A return is cut where the episode ends (terminated or truncated) and at the newest transition of an
agent, which has no successor yet; it never goes on with another episode in the next place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlrun.data import columns as col
from rlrun.data.column_data import Array
from rlrun.data.sample_batch import SampleBatch
from rlrun.replay.observation_store import ObservationStore, restored_store, store_for

_STORED = (col.ACTIONS, col.REWARDS, col.TERMINATEDS, col.TRUNCATEDS)
NONE = -1  # in place of the number of a transition, or of a slot


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
        """Copy rows ``[n, ...]`` to places ``[n]``; a name's first rows make its column."""
        for name, rows in columns.items():
            if name not in self._columns:
                self._columns[name] = np.empty((self.capacity, *rows.shape[1:]), rows.dtype)
            self._columns[name][places] = rows

    def _read(self, places: Array | slice) -> dict[str, Array]:
        return {name: column[places] for name, column in self._columns.items()}


class ReplayBuffer(TransitionBuffer):
    """A ring of transitions.

    Args:
        capacity: transitions that are kept; each further one takes the place of the oldest.
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
        # Episode and agent -> step within it and number of the newest transition.
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
        storage, obs_index, next_index = batch.in_one_storage(col.OBS, col.NEXT_OBS)
        if not self._columns:
            self._observations = store_for(self.capacity, storage[obs_index], storage[next_index])
        places = (self.num_added + np.arange(count)) % self.capacity
        if self.num_added + count > self.capacity:
            self._forget(places)
        follows = follows_row_before(batch)
        led_by = self._link(batch, follows, places, storage, obs_index, next_index)
        # Rows that follow the one before may begin elsewhere, if code has changed the batch.
        elsewhere = (follows[1:] & (obs_index[1:] != next_index[:-1])).nonzero()[0] + 1
        if len(elsewhere):
            left_at = storage[next_index[elsewhere - 1]]
            elsewhere = elsewhere[_differ(left_at, storage[obs_index[elsewhere]])]
        begin = [*elsewhere, *(row for row, before in led_by if before == NONE)]
        slots = self._observations.reserve(len(begin) + count)
        next_slots = slots[len(begin) :]
        obs_slots = np.empty_like(next_slots)
        obs_slots[1:] = next_slots[:-1]  # a row that follows another begins where that has led to
        obs_slots[begin] = slots[: len(begin)]
        for row, before in led_by:
            if before >= self.num_added:
                obs_slots[row] = next_slots[before - self.num_added]
            elif before != NONE:
                obs_slots[row] = self._next_obs_slot[before % self.capacity]
        previous = np.concatenate([np.full(len(begin), NONE), obs_slots])
        self._observations.fill(
            slots, storage[np.concatenate([obs_index[begin], next_index])], previous
        )
        self._write(places, dict(zip(self._stored, batch.columns(self._stored), strict=True)))
        self._refer(places, obs_slots, next_slots)
        self.num_added += count

    def _refer(self, places: Array, obs_slots: Array, next_obs_slots: Array) -> None:
        """Tie transitions to the slots of their observations."""
        self._obs_slot[places], self._next_obs_slot[places] = obs_slots, next_obs_slots
        self._observations.refer(np.concatenate([obs_slots, next_obs_slots]))

    def _forget(self, places: Array) -> None:
        """Release the observations of transitions that are about to be overwritten."""
        old = places[self._obs_slot[places] != NONE]
        slots = np.concatenate([self._obs_slot[old], self._next_obs_slot[old]])
        self._observations.release(slots)

    def _link(
        self,
        batch: SampleBatch,
        follows: Array,
        places: Array,
        storage: Array,
        obs_index: Array,
        next_index: Array,
    ) -> list[tuple[int, int]]:
        """Link each transition to its successor; a first row may follow one added earlier.

        Returns:
            The rows that do not follow the one before, each with the number of the transition that
            led to its observation, or -1.
        """
        linked, start = follows.nonzero()[0], self.num_added
        self._successor[places] = NONE
        self._successor[places[linked - 1]] = start + linked
        episodes, steps, terminateds, truncateds = batch.columns(
            (col.EPS_ID, col.T, col.TERMINATEDS, col.TRUNCATEDS)
        )
        agents, ended = agents_of(batch), terminateds | truncateds
        first_rows = (~follows).nonzero()[0]
        last_rows = np.append(first_rows[1:] - 1, len(places) - 1)
        oldest_kept = max(start + len(places) - self.capacity, 0)
        led_by: list[tuple[int, int]] = []
        for first, last in zip(first_rows.tolist(), last_rows.tolist(), strict=True):
            key = int(episodes[first]), int(agents[first])
            step, before = self._newest.pop(key, (NONE, NONE))
            gap = int(steps[first]) - step - 1
            leads_here = goes_on = before >= oldest_kept and gap >= 0
            if goes_on:
                here = before >= start
                after = storage[next_index[before - start]] if here else self._after(before)
                leads_here = np.array_equal(after, storage[obs_index[first]])
            # Where the agent did not act in between, its next step starts where it was.
            if leads_here or (goes_on and not gap):
                self._successor[before % self.capacity] = start + first
            led_by.append((first, before if leads_here else NONE))
            if not ended[last]:
                self._newest[key] = int(steps[last]), start + last
        if oldest_kept:
            # An episode never ends where its environment was lost: drop it once it is overwritten.
            self._newest = {key: at for key, at in self._newest.items() if at[1] >= oldest_kept}
        return led_by

    def _after(self, number: int) -> Array:
        """The observation that this transition, which must be held, led to."""
        place = number % self.capacity
        return self._observations[self._next_obs_slot[place : place + 1]][0]

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
        """Transitions that follow one another, from each of ``first`` ``[S]`` on.

        A sequence ends with its episode, with an agent's newest transition, or after ``length``.

        Returns:
            Their numbers, sequence after sequence, and the lengths of the sequences, ``[S]``.
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
        """Restore a state of a buffer of the same capacity."""
        self.num_added = int(state["num_added"])
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
    """Rewards summed up over at most ``n_step`` steps that follow one another.

    Args:
        rewards: ``[N]``.
        successors: ``[N]``, what follows each step, counted on around the N places; -1 for nothing.
        first: places ``[n]`` where the sums begin.

    Returns:
        Sums and discounts of what comes after them, float32 ``[n]``; places of their last steps.
    """
    last, returns = first, rewards[first].astype(np.float64)
    discounts = np.full(len(first), gamma)
    for _ in range(n_step - 1):
        successor = successors[last]
        goes_on = successor != NONE
        last = np.where(goes_on, successor % len(rewards), last)
        returns += np.where(goes_on, discounts * rewards[last], 0.0)
        discounts = np.where(goes_on, discounts * gamma, discounts)
    return returns.astype(np.float32), discounts.astype(np.float32), last


def _differ(first: Array, second: Array) -> Array:
    """Which of the rows ``[n, ...]`` are not equal to the bit, ``[n]``; n is at least 1."""
    first, second = (rows.reshape(len(rows), -1).view(np.uint8) for rows in (first, second))
    return (first != second).any(axis=1)


def agents_of(batch: SampleBatch) -> Array:
    """Index of each row's agent, ``[n]``; 0 in batches of a single agent."""
    if col.AGENT_INDEX in batch:
        return batch.column(col.AGENT_INDEX)
    return np.zeros(len(batch), dtype=np.int64)


def follows_row_before(batch: SampleBatch) -> Array:
    """Whether each row ``[n]`` is the same agent's next step, in the same episode and fragment.

    A fragment has all steps of an agent, so at env steps in between the agent did not act.
    """
    unroll, episode, step, terminateds, truncateds = batch.columns(
        (col.UNROLL_ID, col.EPS_ID, col.T, col.TERMINATEDS, col.TRUNCATEDS)
    )
    ended = terminateds | truncateds
    follows = np.zeros(len(step), dtype=np.bool_)
    follows[1:] = (
        (unroll[1:] == unroll[:-1])
        & (episode[1:] == episode[:-1])
        & (step[1:] > step[:-1])
        & ~ended[:-1]
    )
    return follows
