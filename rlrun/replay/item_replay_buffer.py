"""ItemReplayBuffer: whole episodes or whole fragments, sampled as they are.

Capacity counts transitions, whatever the unit; an item that has lost its first transition to newer
ones is not sampled any more. The ring is that of `ReplayBuffer`, so no observation is kept twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.replay.replay_buffer import Array, ReplayBuffer, agents_of, follows_row_before


class ItemReplayBuffer(ReplayBuffer):
    """A ring of transitions that are sampled an episode or a fragment at a time.

    Args:
        capacity: transitions that are kept.
        unit: "episodes" are complete ones, from their first step to their end, however many
            fragments they came in; "fragments" are the batches that were added.
        further_columns: as for `ReplayBuffer`.
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
        self._items: list[tuple[int, int]] = []  # number of the first transition, how many
        # Episode and agent -> first transition, how many, step of the last.
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
        """Find the episodes that ended in this batch; those that did not stay open."""
        begins = np.flatnonzero(~follows_row_before(batch))
        ends = np.append(begins[1:] - 1, len(batch) - 1)
        episodes, agents, steps = batch.column(col.EPS_ID), agents_of(batch), batch.column(col.T)
        done = batch.column(col.TERMINATEDS) | batch.column(col.TRUNCATEDS)
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            who, step = (int(episodes[begin]), int(agents[begin])), int(steps[begin])
            first, count, last = self._open.pop(who, (first_id + begin, 0, -1))
            if step != last + 1:
                continue  # its beginning never came here
            count += end - begin + 1
            if done[end]:
                self._items.append((first, count))
            else:
                self._open[who] = first, count, int(steps[end])

    def sample(self, num_items: int, rng: np.random.Generator) -> SampleBatch:
        """So many items, with replacement, one after the other; ``seq_lens`` are their lengths.

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
        return self._runs(np.array([first]), count)[0]

    def get_state(self) -> dict[str, Any]:
        open_episodes = [(*who, *at) for who, at in self._open.items()]
        return {
            **super().get_state(),
            "items": np.array(self._items, dtype=np.int64).reshape(-1, 2),
            "open": np.array(open_episodes, dtype=np.int64).reshape(-1, 5),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        self._items = [(first, count) for first, count in state["items"].tolist()]
        self._open = {(episode, agent): tuple(at) for episode, agent, *at in state["open"].tolist()}
