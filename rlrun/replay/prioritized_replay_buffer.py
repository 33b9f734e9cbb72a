"""PrioritizedReplayBuffer: transitions sampled in proportion to their priority.

Schaul et al. 2016, arXiv:1511.05952, the proportional variant:

    p_i  priority given to `update_priorities`, |td error| + epsilon
    P(i) = p_i^alpha / sum_j p_j^alpha                                      (eq. 1)
    w_i  = (N P(i))^-beta / max_j w_j, the maximum over the whole buffer    (section 3.4)

Priorities are kept in a `SegmentTree`, whose operations take many of them at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.data import columns as col
from rlrun.data.column_data import Array
from rlrun.data.sample_batch import SampleBatch
from rlrun.replay.replay_buffer import ReplayBuffer


class PrioritizedReplayBuffer(ReplayBuffer):
    """A ring of transitions; new ones get the highest priority of all updates so far.

    Args:
        capacity, n_step, gamma, further_columns: see `ReplayBuffer`.
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

    def add(self, batch: SampleBatch, priorities: Array | None = None) -> None:
        """Append all rows; the batch itself is not kept.

        Args:
            priorities: one for each row, ``[N]``; default: the highest of all updates so far.

        Raises:
            ValueError: for a priority that is not positive and finite.
        """
        first = self.num_added
        if priorities is None:
            super().add(batch)
            return
        _require_positive(priorities)
        super().add(batch)
        highest = self.max_priority
        self.update_priorities(np.arange(first, self.num_added), priorities)
        self.max_priority = highest  # only updates raise the priority of later additions

    def _add(self, batch: SampleBatch) -> None:
        ids = self.num_added + np.arange(len(batch))
        super()._add(batch)
        self._prioritize(ids)

    def _prioritize(self, ids: Array) -> None:
        """Let transitions that have just been added be drawn."""
        self._set(ids, np.full(len(ids), self.max_priority))

    def sample(self, num_items: int, rng: np.random.Generator, *, beta: float = 0.4) -> SampleBatch:
        """Transitions drawn by priority, with replacement, and their ``weights`` for a loss.

        Args:
            beta: how far the weights correct for prioritized sampling: 0 not at all, 1 fully.

        Raises:
            ValueError: nothing has been added yet.
        """
        ids, weights = self._draw(num_items, rng, beta)
        batch = self.gather(ids)
        batch[col.WEIGHTS] = weights
        return batch

    def _draw(
        self, num_items: int, rng: np.random.Generator, beta: float
    ) -> tuple[Array, NDArray[np.float32]]:
        """Numbers of transitions drawn by priority, and their weights."""
        self._num_sampled_from()
        places = self._sums.find(rng.random(num_items) * self._sums.root)
        newest = self.num_added - 1
        # (N P_i)^-beta / (N P_min)^-beta: N and the sum cancel out.
        ratio = self._sums[places] / self._minima.root
        weights = (ratio**-beta).astype(np.float32)
        return newest - (newest - places) % self.capacity, weights

    def update_priorities(self, item_ids: Array, priorities: Array) -> None:
        """Give sampled transitions new priorities; overwritten ones are skipped.

        Raises:
            ValueError: for a priority that is not positive and finite.
        """
        _require_positive(priorities)
        there = item_ids >= self._oldest
        if not there.any():
            return
        self.max_priority = max(self.max_priority, float(priorities[there].max()))
        self._set(item_ids[there], priorities[there])

    def _set(self, ids: Array, priorities: Array) -> None:
        self._set_scaled(ids, np.asarray(priorities, dtype=np.float64) ** self.alpha)

    def _set_scaled(self, ids: Array, scaled: Array) -> None:
        """Set p_i^alpha; transitions with 0 are not drawn."""
        places = ids % self.capacity
        self._sums[places] = scaled
        self._minima[places] = np.where(scaled > 0.0, scaled, np.inf)

    def get_state(self) -> dict[str, Any]:
        return {
            **super().get_state(),
            "max_priority": self.max_priority,
            "scaled_priorities": self._sums[self._places],
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        if "max_priority" not in state:
            raise ValueError("its replay buffer has no priorities, but replay.prioritized is true")
        super().set_state(state)
        self.max_priority = float(state["max_priority"])
        self._clear()
        self._set_scaled(self._places, state["scaled_priorities"])

    def check_valid(self) -> None:
        super().check_valid()
        held = self._sums[self._places]
        drawn = held[held > 0.0]
        assert np.isclose(self._sums.root, held.sum()), "the sum is wrong"
        assert not len(drawn) or self._minima.root == drawn.min(), "the minimum is wrong"


def _require_positive(priorities: Array) -> None:
    if not (np.isfinite(priorities) & (priorities > 0.0)).all():
        raise ValueError("priorities must be positive and finite")


class SegmentTree:
    """``capacity`` leaves; each inner node combines its two children.

    Node i has the children 2 i and 2 i + 1, the root is 1. Nodes are recomputed from their
    children, never adjusted by differences, so that rounding errors do not accumulate.

    Args:
        combine: ``np.add`` or ``np.minimum``.
        empty: initial value of the leaves, neutral for ``combine``.
    """

    def __init__(self, capacity: int, combine: np.ufunc, empty: float) -> None:
        self._depth = (capacity - 1).bit_length()
        self._first_leaf = 1 << self._depth
        self._combine = combine
        self._nodes = np.full(2 * self._first_leaf, empty, dtype=np.float64)

    @property
    def root(self) -> float:
        """All leaves combined."""
        return float(self._nodes[1])

    def __getitem__(self, leaves: Array) -> Array:
        return self._nodes[self._first_leaf + leaves]

    def __setitem__(self, leaves: Array, values: Array | float) -> None:
        """Set leaves ``[n]``; where a leaf occurs twice, the last value counts."""
        nodes = self._first_leaf + leaves
        self._nodes[nodes] = values
        for _ in range(self._depth):
            nodes = nodes >> 1  # siblings compute their parent twice: cheaper than finding them
            self._nodes[nodes] = self._combine(self._nodes[2 * nodes], self._nodes[2 * nodes + 1])

    def find(self, masses: Array) -> Array:
        """The leaves ``[n]`` at which the running sum passes ``masses``, in a tree of sums.

        A leaf that holds 0 is never found, even where rounding lets a mass reach the total.
        """
        nodes = np.ones(len(masses), dtype=np.int64)
        left_over = np.array(masses, dtype=np.float64)
        for _ in range(self._depth):
            left = self._nodes[2 * nodes]
            goes_right = (left_over >= left) & (self._nodes[2 * nodes + 1] > 0.0)
            left_over -= np.where(goes_right, left, 0.0)
            nodes = 2 * nodes + goes_right
        return nodes - self._first_leaf
