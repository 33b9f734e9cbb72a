"""The runs of a batch as index arithmetic: which rows go together, and in which order.

A *run* is a sequence of a recurrent module, or for others the piece of an episode that stands in
the batch. Numpy alone; knows nothing of tensors and columns.

    N  rows    S  runs
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]


class Runs:
    """Runs that stand one behind the other.

    Args:
        lengths: rows of each, ``[S]``; they add up to N.
        whole: never tear a run apart, as a recurrent module asks.
    """

    def __init__(self, lengths: Index, *, whole: bool) -> None:
        self.lengths, self._whole = lengths, whole
        self.starts = np.cumsum(lengths) - lengths
        self.num_rows = int(lengths.sum())

    def with_next_steps(self) -> tuple[Index, Index]:
        """All rows, and behind each run the step that it led to.

        Returns:
            For each of these N + S positions the row it stands for, N + row for a step later; and
            the positions of the rows, ``[N]``.
        """
        num_runs = len(self.lengths)
        present = np.arange(self.num_rows) + np.repeat(np.arange(num_runs), self.lengths)
        rows = np.empty(self.num_rows + num_runs, dtype=np.int64)
        rows[present] = np.arange(self.num_rows)
        ends = self.starts + self.lengths
        rows[ends + np.arange(num_runs)] = self.num_rows + ends - 1
        return rows, present

    def chunks(self, size: int) -> Iterator[tuple[slice, Index]]:
        """Slices of `with_next_steps`, about ``size`` long, and the whole runs in each."""
        bounds = np.concatenate([[0], np.cumsum(self.lengths + 1)])
        if not self._whole:
            total = int(bounds[-1])
            yield from ((slice(a, a + size), self.starts[:0]) for a in range(0, total, size))
            return
        first = 0
        while first < len(self.lengths):
            last = max(first + 1, int(np.searchsorted(bounds, bounds[first] + size, "right")) - 1)
            yield slice(int(bounds[first]), int(bounds[last])), np.arange(first, last)
            first = last

    def groups(
        self, size: int, rng: np.random.Generator | None = None
    ) -> Iterator[tuple[Index, Index]]:
        """Rows ``size`` at a time, or of the whole runs that begin within them, and these runs.

        Args:
            rng: shuffles rows, or whole runs; None leaves them in their order.
        """
        number = len(self.lengths) if self._whole else self.num_rows
        order = np.arange(number) if rng is None else rng.permutation(number)
        if not self._whole:
            yield from ((order[a : a + size], order[:0]) for a in range(0, number, size))
            return
        lengths = self.lengths[order]
        begins = np.cumsum(lengths) - lengths
        cuts = np.flatnonzero(np.diff(begins // size)) + 1
        for runs in np.split(order, cuts):
            parts = [
                np.arange(a, a + n)
                for a, n in zip(self.starts[runs], self.lengths[runs], strict=True)
            ]
            yield np.concatenate(parts), runs
