"""ReservoirBuffer: a uniform sample of all transitions there ever were, not only of the last ones.

Vitter 1985, "Random sampling with a reservoir", algorithm R. As neighbours are not kept together,
each transition is kept whole and returns are of one step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.replay.replay_buffer import Array

_STORED = (col.OBS, col.ACTIONS, col.REWARDS, col.NEXT_OBS, col.TERMINATEDS, col.TRUNCATEDS)


class ReservoirBuffer:
    """Holds each transition that was ever added with the same probability.

    Args:
        capacity: transitions that are kept.
    """

    def __init__(self, capacity: int = 10_000) -> None:
        if capacity < 1:
            raise ValueError(f"capacity {capacity} must be at least 1")
        self.capacity = capacity
        self.num_added = 0
        self._columns: dict[str, Array] = {}
        self._item_ids = np.full(capacity, -1, dtype=np.int64)

    def __len__(self) -> int:
        return min(self.num_added, self.capacity)

    def add(self, batch: SampleBatch, rng: np.random.Generator) -> None:
        """Take in rows; once full, the i-th ever takes a random place with chance capacity / i."""
        ids = self.num_added + np.arange(len(batch))
        if not len(ids):
            return
        places = np.where(ids < self.capacity, ids, rng.integers(0, ids + 1))
        # Of several rows that chose one place the last one stays, as if they had come one by one.
        kept = np.flatnonzero(places < self.capacity)
        self.num_added += len(ids)
        for name in _STORED:
            rows = batch[name]
            if name not in self._columns:
                self._columns[name] = np.empty((self.capacity, *rows.shape[1:]), rows.dtype)
            self._columns[name][places[kept]] = rows[kept]
        self._item_ids[places[kept]] = ids[kept]

    def sample(self, num_items: int, rng: np.random.Generator) -> SampleBatch:
        """Uniformly drawn transitions, with replacement, and their ``item_ids``.

        Raises:
            ValueError: when nothing has been added yet.
        """
        if not self.num_added:
            raise ValueError("an empty reservoir cannot be sampled; add a batch first")
        places = rng.integers(len(self), size=num_items)
        columns = {name: column[places] for name, column in self._columns.items()}
        return SampleBatch.from_columns({**columns, col.ITEM_IDS: self._item_ids[places]})

    def get_state(self) -> dict[str, Any]:
        """All that is held, as arrays."""
        size = len(self)
        return {
            "num_added": self.num_added,
            "columns": {name: column[:size].copy() for name, column in self._columns.items()},
            "item_ids": self._item_ids[:size].copy(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` of a reservoir of the same capacity returned."""
        self.num_added = int(state["num_added"])
        size = len(self)
        self._item_ids[:size] = state["item_ids"]
        self._columns = {}
        for name, held in state["columns"].items():
            self._columns[name] = np.empty((self.capacity, *held.shape[1:]), held.dtype)
            self._columns[name][:size] = held
