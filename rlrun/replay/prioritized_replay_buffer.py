"""PrioritizedReplayBuffer: transitions sampled in proportion to their priority.

Schaul et al. 2016, arXiv:1511.05952, the proportional variant:

    p_i  priority given to `update_priorities`, |td error| + epsilon
    P(i) = p_i^alpha / sum_j p_j^alpha                                      (eq. 1)
    w_i  = (N P(i))^-beta / max_j w_j, the maximum over the whole buffer    (section 3.4)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.replay.replay_buffer import Array, ReplayBuffer
from rlrun.replay.segment_tree import SegmentTree


class PrioritizedReplayBuffer(ReplayBuffer):
    """A ring of transitions; new ones get the highest priority that any update has set.

    Args:
        capacity, n_step, gamma, further_columns: as for `ReplayBuffer`.
        alpha: 0 samples uniformly, 1 in proportion to the priorities.
    """

    def __init__(
        self,
        capacity: int = 10_000,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        alpha: float = 0.6,
        further_columns: Sequence[str] = (),
    ) -> None:
        super().__init__(capacity, n_step=n_step, gamma=gamma, further_columns=further_columns)
        self.alpha = alpha
        self.max_priority = 1.0
        self._clear()

    def _clear(self) -> None:
        self._sums = SegmentTree(self.capacity, np.add, 0.0)
        self._minima = SegmentTree(self.capacity, np.minimum, np.inf)

    def _add(self, batch: SampleBatch) -> None:
        ids = self.num_added + np.arange(len(batch))
        super()._add(batch)
        self._set(ids, np.full(len(ids), self.max_priority))

    def sample(self, num_items: int, rng: np.random.Generator, *, beta: float = 0.4) -> SampleBatch:
        """Transitions drawn by priority, with replacement, and their ``weights`` for a loss.

        Args:
            beta: how far the weights make up for the uneven sampling; 1 does so fully.

        Raises:
            ValueError: when nothing has been added yet.
        """
        ids, weights = self._draw(num_items, rng, beta)
        batch = self.gather(ids)
        batch[col.WEIGHTS] = weights
        return batch

    def _draw(
        self, num_items: int, rng: np.random.Generator, beta: float
    ) -> tuple[Array, NDArray[np.float32]]:
        """Numbers of transitions drawn by priority, and their weights."""
        self._require_some()
        places = self._sums.find(rng.random(num_items) * self._sums.root)
        newest = self.num_added - 1
        # (N P_i)^-beta / (N P_min)^-beta: N and the sum cancel out.
        ratio = self._sums[places] / self._minima.root
        weights = (ratio**-beta).astype(np.float32)
        return newest - (newest - places) % self.capacity, weights

    def update_priorities(self, item_ids: Array, priorities: Array) -> None:
        """Give sampled transitions new priorities; those overwritten meanwhile are left out.

        Raises:
            ValueError: for a priority that is not positive and finite.
        """
        if not (np.isfinite(priorities) & (priorities > 0.0)).all():
            raise ValueError("priorities must be positive and finite")
        there = item_ids >= self._oldest
        if not there.any():
            return
        self.max_priority = max(self.max_priority, float(priorities[there].max()))
        self._set(item_ids[there], priorities[there])

    def _set(self, ids: Array, priorities: Array) -> None:
        places = ids % self.capacity
        values = np.asarray(priorities, dtype=np.float64) ** self.alpha
        self._sums[places] = values
        self._minima[places] = values

    def get_state(self) -> dict[str, Any]:
        places = np.arange(self._oldest, self.num_added) % self.capacity
        return {
            **super().get_state(),
            "max_priority": self.max_priority,
            "scaled_priorities": self._sums[places],
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        self.max_priority = float(state["max_priority"])
        self._clear()
        places = np.arange(self._oldest, self.num_added) % self.capacity
        self._sums[places] = state["scaled_priorities"]
        self._minima[places] = state["scaled_priorities"]

    def check_valid(self) -> None:
        super().check_valid()
        places = np.arange(self._oldest, self.num_added) % self.capacity
        held = self._sums[places]
        assert (held > 0.0).all(), "a transition without priority"
        assert np.isclose(self._sums.root, held.sum()), "the sum is wrong"
        assert not len(held) or self._minima.root == held.min(), "the minimum is wrong"
