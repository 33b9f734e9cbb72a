"""ObservationStore: observations that several transitions refer to, each kept once.

Owns the slots, who still needs them and which are free. Must not know what a transition is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_SPARE = 64


class ObservationStore:
    """Slots for observations, with a count of references to each.

    Args:
        capacity: transitions that refer to it; room is made for one observation each, and an
            eighth more for final ones. Where episodes are very short, it grows.
        shape, dtype: of one observation.
    """

    def __init__(self, capacity: int, shape: tuple[int, ...], dtype: Any) -> None:
        num_slots = capacity + capacity // 8 + _SPARE
        self._rows = np.empty((num_slots, *shape), dtype=dtype)
        self._references = np.zeros(num_slots, dtype=np.int64)
        # A stack: slots just freed are used again first, and memory never needed is never touched.
        self._free = np.arange(num_slots - 1, -1, -1)
        self._num_free = num_slots

    @property
    def num_used(self) -> int:
        """Slots that hold an observation."""
        return len(self._rows) - self._num_free

    @property
    def nbytes(self) -> int:
        """Bytes of the observations held."""
        return self.num_used * self._rows[:1].nbytes

    def reserve(self, count: int) -> Array:
        """So many free slots ``[count]``, without a reference yet, for `fill`."""
        while count > self._num_free:
            self._grow()
        slots = self._free[self._num_free - count : self._num_free][::-1].copy()
        self._num_free -= count
        return slots

    def fill(self, slots: Array, observations: Array, previous: Array) -> None:
        """Copy observations ``[n, ...]`` into reserved slots ``[n]``.

        Args:
            previous: slots ``[n]`` of the observations before these, or -1; unused here.
        """
        self._rows[slots] = observations

    def put(self, observations: Array) -> Array:
        """Copy observations ``[n, ...]`` into slots ``[n]``, without a reference yet."""
        slots = self.reserve(len(observations))
        self._rows[slots] = observations
        return slots

    def refer(self, slots: Array) -> None:
        """Count one more reference for each entry of ``slots``."""
        np.add.at(self._references, slots, 1)

    def release(self, slots: Array) -> Array:
        """Count one reference less for each entry; returns slots without any: they are free."""
        np.subtract.at(self._references, slots, 1)
        freed = np.unique(slots[self._references[slots] == 0])
        self._free[self._num_free : self._num_free + len(freed)] = freed
        self._num_free += len(freed)
        return freed

    def __getitem__(self, slots: Array) -> Array:
        """A copy of the observations ``[n, ...]`` in these slots ``[n]``."""
        return self._rows.take(slots, axis=0)  # a fifth of the time that indexing takes

    def get_state(self, slots: Array) -> dict[str, Array]:
        """What these slots ``[n]`` hold."""
        return {"rows": self[slots]}

    def set_state(self, state: Mapping[str, Array]) -> Array:
        """Put back into an empty store what `get_state` returned; returns the slots ``[n]``."""
        return self.put(state["rows"])

    def _grow(self) -> None:
        before = len(self._rows)
        added = before // 4 + _SPARE
        more = np.empty((added, *self._rows.shape[1:]), dtype=self._rows.dtype)
        self._rows = np.concatenate([self._rows, more])
        self._references = np.concatenate([self._references, np.zeros(added, dtype=np.int64)])
        free = self._free[: self._num_free]
        fresh = np.arange(before + added - 1, before - 1, -1)
        self._free = np.concatenate([fresh, free, np.zeros(before - len(free), dtype=np.int64)])
        self._num_free += added

    def check_valid(self, referring: Array) -> None:
        """Raise AssertionError unless ``referring`` are all references there are."""
        counts = np.bincount(referring, minlength=len(self._rows))
        assert np.array_equal(counts, self._references), "references were lost"
        free = self._free[: self._num_free]
        assert np.array_equal(np.sort(free), np.flatnonzero(counts == 0)), "free slots were lost"
