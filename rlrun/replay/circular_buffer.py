"""CircularBuffer: the last few train batches, each for a few uses.

The buffer of IMPACT (Luo et al. 2020, arXiv:1912.00167). Must not know what the batches contain.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

import numpy as np

Batch = TypeVar("Batch")


class CircularBuffer(Generic[Batch]):
    """Keeps the newest batches; each can be sampled a limited number of times.

    Args:
        num_batches: most batches that are kept; a further one replaces the oldest.
        uses: number of times that each can be sampled.

    Attributes:
        filled: whether it has held ``num_batches`` at once.
    """

    def __init__(self, num_batches: int, uses: int) -> None:
        self._num_batches, self._uses = num_batches, uses
        self.filled = False
        # Batches with their uses left, the oldest first; none without uses left.
        self._contents: list[tuple[Batch, int]] = []

    def __len__(self) -> int:
        return len(self._contents)

    def add(self, batch: Batch) -> None:
        """Add a batch, with all its uses left."""
        self._contents = [*self._contents, (batch, self._uses)][-self._num_batches :]
        self.filled |= len(self) == self._num_batches

    def sample(self, rng: np.random.Generator) -> Batch:
        """One of the batches, drawn uniformly; its last use removes it.

        Raises:
            IndexError: the buffer is empty.
        """
        if not self._contents:
            raise IndexError("the buffer is empty")
        position = int(rng.integers(len(self)))
        batch, uses_left = self._contents.pop(position)
        if uses_left > 1:
            self._contents.insert(position, (batch, uses_left - 1))
        return batch

    def contents(self) -> list[tuple[Batch, int]]:
        """The batches, the oldest first, each with its uses left."""
        return list(self._contents)

    def set_contents(self, contents: Iterable[tuple[Batch, int]]) -> None:
        """Replace everything by batches with their uses left, the oldest first."""
        self._contents = list(contents)
