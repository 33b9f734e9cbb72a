"""A binary tree over numbers: their sum or minimum at once, changed and searched many at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class SegmentTree:
    """``capacity`` leaves; each inner node combines its two children.

    Node i has the children 2 i and 2 i + 1, the root is 1. Nodes are recomputed from their
    children, never adjusted by differences, so no rounding error piles up.

    Args:
        combine: ``np.add`` or ``np.minimum``.
        empty: what leaves hold at first, neutral for ``combine``.
    """

    def __init__(self, capacity: int, combine: np.ufunc, empty: float) -> None:
        self._depth = max(capacity - 1, 0).bit_length()
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
        """Change leaves ``[n]``; of one that occurs twice the last value counts."""
        nodes = self._first_leaf + leaves
        self._nodes[nodes] = values
        for _ in range(self._depth):
            nodes = nodes >> 1  # siblings compute their parent twice: cheaper than finding them
            self._nodes[nodes] = self._combine(self._nodes[2 * nodes], self._nodes[2 * nodes + 1])

    def find(self, masses: Array) -> Array:
        """For a tree of sums: the leaves ``[n]`` at which the running sum passes ``masses``.

        A leaf that holds 0 is never found, even where rounding lets a mass reach the total.
        """
        nodes = np.ones(len(masses), dtype=np.int64)
        left_over = np.array(masses, dtype=np.float64)
        for _ in range(self._depth):
            left = self._nodes[2 * nodes]
            goes_right = ((left_over >= left) & (self._nodes[2 * nodes + 1] > 0.0)) | (left == 0.0)
            left_over -= np.where(goes_right, left, 0.0)
            nodes = 2 * nodes + goes_right
        return nodes - self._first_leaf
