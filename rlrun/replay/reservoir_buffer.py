"""ReservoirBuffer: a uniform sample of all transitions ever added, not only of the last ones.

Vitter 1985, "Random sampling with a reservoir", algorithm R. The successor of a transition may be
missing, so each transition is kept whole, and returns are of one step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.replay.replay_buffer import TransitionBuffer

_STORED = (col.OBS, col.ACTIONS, col.REWARDS, col.NEXT_OBS, col.TERMINATEDS, col.TRUNCATEDS)


class ReservoirBuffer(TransitionBuffer):
    """Keeps each transition ever added with the same probability.

    Args:
        capacity: transitions that are kept.
    """

    def __init__(self, capacity: int = 10_000) -> None:
        super().__init__(capacity)
        self._item_ids = np.full(capacity, -1, dtype=np.int64)

    def add(self, batch: SampleBatch, rng: np.random.Generator) -> None:
        """Add rows; once full, the i-th row ever takes a random place with probability C / i."""
        ids = self.num_added + np.arange(len(batch))
        if not len(ids):
            return
        places = np.where(ids < self.capacity, ids, rng.integers(0, ids + 1))
        # Where several rows chose one place, the last one stays, as if added one by one.
        kept = np.flatnonzero(places < self.capacity)
        self.num_added += len(ids)
        self._write(places[kept], {name: batch[name][kept] for name in _STORED})
        self._item_ids[places[kept]] = ids[kept]

    def sample(self, num_items: int, rng: np.random.Generator) -> SampleBatch:
        """Uniformly drawn transitions, with replacement, and their ``item_ids``.

        Raises:
            ValueError: nothing has been added yet.
        """
        places = rng.integers(self._num_sampled_from(), size=num_items)
        return SampleBatch.from_columns(
            {**self._read(places), col.ITEM_IDS: self._item_ids[places]}
        )

    def get_state(self) -> dict[str, Any]:
        """All transitions, as arrays."""
        places = np.arange(len(self))
        return {
            "num_added": self.num_added,
            "columns": self._read(places),
            "item_ids": self._item_ids[places],
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of a reservoir of the same capacity."""
        self.num_added = int(state["num_added"])
        places = np.arange(len(self))
        self._item_ids[places] = state["item_ids"]
        self._columns = {}
        self._write(places, state["columns"])
