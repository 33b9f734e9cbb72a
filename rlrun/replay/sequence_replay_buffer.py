"""Buffers that sample several steps of an episode together, in their order.

`SequenceReplayBuffer` samples sequences of limited length by priority, for recurrent networks
(R2D2, Kapturowski et al. 2019); each step is kept with the network's state before it, so that a
sequence may begin anywhere. `ItemReplayBuffer` samples whole episodes or whole fragments uniformly.
Both are rings of transitions, so an observation that several sequences contain is kept once.

    S  sequences of a sample      M  steps of all of them

| column of a sample | row shape | meaning |
|---|---|---|
| obs, actions, rewards, new_obs, terminateds, truncateds | as added, ``[M, ...]`` | single steps |
| t | () ``[M]`` | step within the episode |
| further columns | as added, ``[M, ...]`` | but ``state_in_k``: ``[S, ...]``, of first steps |
| weights | () float32 ``[M]`` | of the step's sequence; only where there are priorities |
| item_ids | () int64 ``[M]`` | the number of the transition |
| seq_lens | () int64 ``[S]`` | steps of each sequence |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from rlrun.data import columns as col
from rlrun.data.column_data import Array
from rlrun.data.sample_batch import SampleBatch
from rlrun.data.sequences import sequence_offsets
from rlrun.replay.prioritized_replay_buffer import PrioritizedReplayBuffer
from rlrun.replay.replay_buffer import NONE, ReplayBuffer, chunks_of


class SequenceReplayBuffer(PrioritizedReplayBuffer):
    """A ring of transitions that are sampled as sequences, by the priority of their first step.

    Args:
        capacity: transitions that are kept, for sequences of any length.
        length: most steps of a sequence, which is shorter if its episode ends before.
        burn_in: first steps of a sequence that are not learned from, unless it begins in the
            initial state. A step can begin a sequence only if more than these follow it.
        initial_state: the state in which an agent's episode begins, an array for each
            ``state_in_k``; if empty, all sequences have burn-in.
        further_columns: see `ReplayBuffer`; states need one row for each step.
        alpha: see `PrioritizedReplayBuffer`; 0 draws first steps uniformly.
    """

    def __init__(
        self,
        capacity: int = 10_000,
        *,
        length: int = 20,
        burn_in: int = 0,
        initial_state: Sequence[Any] = (),
        further_columns: Sequence[str] = (),
        alpha: float = 0.6,
    ) -> None:
        if length < 1:
            raise ValueError(f"a sequence must have at least 1 step, not {length}")
        super().__init__(capacity, further_columns=(col.T, *further_columns), alpha=alpha)
        self.length, self.burn_in, self._initial_state = length, burn_in, initial_state
        # Transitions that cannot begin a sequence yet, the last known of the steps that follow each
        # of them, and the number of these steps, [3, w].
        self._waiting = np.zeros((3, 0), np.int64)

    @property
    def can_be_sampled(self) -> bool:
        return self._sums.root > 0.0

    def _prioritize(self, ids: Array) -> None:
        if not (self.burn_in and len(ids)):
            super()._prioritize(ids)
            return
        ready, waiting = self._beginnings(ids)
        scaled = np.zeros(len(ready) + len(waiting))
        scaled[: len(ready)] = self.max_priority**self.alpha
        self._set_scaled(np.append(ready, waiting), scaled)

    def _beginnings(self, new: Array) -> tuple[Array, Array]:
        """Transitions that can begin a sequence from now on, and new ones that cannot yet."""
        states = {
            name: column[new % self.capacity]
            for name, column in self._columns.items()
            if name.startswith(col.STATE_IN_PREFIX)
        }
        initial = np.zeros(len(new), np.bool_)
        if self._initial_state:
            initial = in_initial_state(states, self._initial_state)
        late = new[~initial]
        waiting = np.append(self._waiting, [late, late, np.zeros_like(late)], axis=1)
        ids, last, count = waiting[:, waiting[0] >= self._oldest]
        while True:
            following = self._successor[last % self.capacity]
            more = (following != NONE) & (count < self.burn_in)
            if not more.any():
                break
            last, count = np.where(more, following, last), count + more
        ready, places = count == self.burn_in, last % self.capacity
        ended = self._columns[col.TERMINATEDS][places] | self._columns[col.TRUNCATEDS][places]
        self._waiting = np.stack([ids, last, count])[:, ~ready & ~ended]
        return np.append(new[initial], ids[ready]), ids[~ready & (ids >= new[0])]

    def update_priorities(self, item_ids: Array, priorities: Array) -> None:
        """See `PrioritizedReplayBuffer`; transitions that cannot begin a sequence are skipped."""
        drawn = self._sums[item_ids % self.capacity] > 0.0
        super().update_priorities(item_ids[drawn], priorities[drawn])

    def sample(self, num_items: int, rng: np.random.Generator, *, beta: float = 0.4) -> SampleBatch:
        """Sequences ``[S = num_items]``, drawn with replacement.

        Raises:
            ValueError: there is none yet; see `can_be_sampled`.
        """
        if not self.can_be_sampled:
            raise ValueError("the replay buffer holds no sequence to learn from yet")
        first, weights = self._draw(num_items, rng, beta)
        ids, lengths = self._sequences(first, self.length)
        starts = sequence_offsets(lengths)[:-1]
        columns = {
            name: rows[starts] if name.startswith(col.STATE_IN_PREFIX) else rows
            for name, rows in self._rows(ids).items()
        }
        return SampleBatch.from_columns(
            {**columns, col.WEIGHTS: np.repeat(weights, lengths), col.SEQ_LENS: lengths}
        )

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        self._waiting = self._waiting[:, :0]
        if self.burn_in and self._columns:
            _, waiting = self._beginnings(np.arange(self._oldest, self.num_added))
            self._set_scaled(waiting, np.zeros(len(waiting)))


def in_initial_state(rows: Mapping[str, Any] | SampleBatch, initial_state: Sequence[Any]) -> Array:
    """Whether each row's states ``state_in_k`` are the initial ones; its `t` need not be 0.

    Args:
        initial_state: the initial state for each k.
    """
    equal = [rows[f"{col.STATE_IN_PREFIX}{k}"] == each for k, each in enumerate(initial_state)]
    return np.logical_and.reduce([each.reshape(len(each), -1).all(axis=1) for each in equal])


class ItemReplayBuffer(ReplayBuffer):
    """A ring of transitions that are sampled an episode or a fragment at a time.

    Args:
        capacity: transitions that are kept, with either unit; an item whose first transition has
            been overwritten is no longer sampled.
        unit: "fragments" are the batches that were added, in parts if they are longer than the
            capacity. "episodes" are all steps of an agent in an episode, added in any number of
            fragments. Episodes without an agent that was seen from env step 0 on may be incomplete,
            and are left out.
        further_columns: see `ReplayBuffer`.
    """

    def __init__(
        self,
        capacity: int = 10_000,
        *,
        unit: Literal["episodes", "fragments"],
        further_columns: Sequence[str] = (),
    ) -> None:
        if unit not in ("episodes", "fragments"):
            raise ValueError(f"unit {unit!r} is neither episodes nor fragments")
        super().__init__(capacity, further_columns=(col.EPS_ID, col.T, *further_columns))
        self.unit = unit
        self._items: list[tuple[int, int]] = []  # number of the first transition, length
        # Episode and agent -> number of the first transition or -1, length, number of the last.
        self._open: dict[tuple[int, int], tuple[int, int, int]] = {}

    @property
    def num_items(self) -> int:
        """Items that can be sampled."""
        self._items = [item for item in self._items if item[0] >= self._oldest]
        return len(self._items)

    def _add(self, batch: SampleBatch) -> None:
        first = self.num_added
        super()._add(batch)
        if not len(batch):
            return
        if self.unit == "fragments":
            self._items.append((first, len(batch)))
        else:
            self._add_episodes(batch, first)

    def _add_episodes(self, batch: SampleBatch, first_id: int) -> None:
        """Add the episodes that ended in this batch to the items; the others stay open."""
        _, chunks = chunks_of(batch)
        # A fragment has all steps of its agents, so episodes followed from step 0 on are complete.
        followed = {key[0] for key, (first, *_) in self._open.items() if first != NONE}
        followed.update(chunk.key[0] for chunk in chunks if chunk.first_step == 0)
        for chunk in chunks:
            here = first_id + chunk.first
            new = here if chunk.key[0] in followed else NONE
            first, count, last = self._open.pop(chunk.key, (new, 0, NONE))
            if count and self._successor[last % self.capacity] != here:
                first = NONE  # steps in between were never added
            count += chunk.last - chunk.first + 1
            if not chunk.ended:
                self._open[chunk.key] = first, count, first_id + chunk.last
            elif first != NONE:
                self._items.append((first, count))

    def sample(self, num_items: int, rng: np.random.Generator) -> SampleBatch:
        """Items ``[S = num_items]``, drawn with replacement.

        Raises:
            ValueError: when there is none yet.
        """
        available = self.num_items
        if not available:
            raise ValueError(f"the replay buffer holds no {self.unit} yet")
        chosen = [self._items[i] for i in rng.integers(available, size=num_items)]
        ids = np.concatenate([self._ids_of(*item) for item in chosen])
        lengths = np.array([count for _, count in chosen], dtype=np.int64)
        return SampleBatch.from_columns({**self._rows(ids), col.SEQ_LENS: lengths})

    def _ids_of(self, first: int, count: int) -> Array:
        if self.unit == "fragments":
            return np.arange(first, first + count)
        return self._sequences(np.array([first]), count)[0]

    def get_state(self) -> dict[str, Any]:
        open_episodes = [(*key, *at) for key, at in self._open.items()]
        return {
            **super().get_state(),
            "items": np.array(self._items, dtype=np.int64).reshape(-1, 2),
            "open": np.array(open_episodes, dtype=np.int64).reshape(-1, 5),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        self._items = [(first, count) for first, count in state["items"].tolist()]
        self._open = {(episode, agent): tuple(at) for episode, agent, *at in state["open"].tolist()}
