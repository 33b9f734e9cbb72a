"""CircularBuffer: the last few train batches, each for a few uses.

The buffer of IMPACT (Luo et al. 2020, arXiv:1912.00167). Must not know what the batches contain.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

Batch = TypeVar("Batch")


@dataclass
class _Slot(Generic[Batch]):
    batch: Batch
    uses_left: int


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
        self._slots: list[_Slot[Batch]] = []  # the oldest first; none without uses left

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, batch: Batch) -> None:
        """Add a batch, with all its uses left."""
        self._slots = [*self._slots, _Slot(batch, self._uses)][-self._num_batches :]
        self.filled |= len(self._slots) == self._num_batches

    def sample(self, rng: np.random.Generator) -> Batch:
        """One of the batches, drawn uniformly; its last use removes it.

        Raises:
            IndexError: the buffer is empty.
        """
        if not self._slots:
            raise IndexError("the buffer is empty")
        position = int(rng.integers(len(self._slots)))
        slot = self._slots[position]
        slot.uses_left -= 1
        if not slot.uses_left:
            del self._slots[position]
        return slot.batch

    def contents(self) -> list[tuple[Batch, int]]:
        """The batches, the oldest first, each with its uses left."""
        return [(slot.batch, slot.uses_left) for slot in self._slots]

    def set_contents(self, contents: Iterable[tuple[Batch, int]]) -> None:
        """Replace everything by batches with their uses left, the oldest first."""
        self._slots = [_Slot(batch, uses_left) for batch, uses_left in contents]
