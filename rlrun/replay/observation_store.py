"""Observations that several transitions refer to, each kept once.

`ObservationStore` keeps them whole. `FrameStore` keeps stacks of frames, each frame once: a
stack of the last k frames shares all but one of them with the stack before it, so stacks of four
would take four times the memory of their frames. Owns slots, references to them, and which are
free. Must not know what a transition is.

    n  slots of a call      k  frames of a stack, on its first axis as in gymnasium
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlrun.data.column_data import Array

_SPARE = 64


class ObservationStore:
    """Slots for observations, with a count of references to each.

    Args:
        capacity: transitions that refer to it; there is room for one observation each, and an
            eighth more for final ones. With very short episodes it grows.
        shape, dtype: shape and dtype of one observation.
    """

    def __init__(self, capacity: int, shape: tuple[int, ...], dtype: Any) -> None:
        num_slots = capacity + capacity // 8 + _SPARE
        self._rows = np.empty((num_slots, *shape), dtype=dtype)
        self._references = np.zeros(num_slots, dtype=np.int64)
        # A stack: slots just freed are reused first, so that memory not needed is never touched.
        self._free = np.arange(num_slots - 1, -1, -1)
        self._num_free = num_slots

    @property
    def nbytes(self) -> int:
        """Bytes of the observations held."""
        return (len(self._rows) - self._num_free) * self._rows[:1].nbytes

    def reserve(self, count: int) -> Array:
        """Free slots ``[count]``, without a reference yet, for `fill`."""
        while count > self._num_free:
            self._grow()
        slots = self._free[self._num_free - count : self._num_free][::-1].copy()
        self._num_free -= count
        return slots

    def fill(self, slots: Array, observations: Array, previous: Array) -> None:
        """Copy observations ``[n, ...]`` into reserved slots ``[n]``.

        Args:
            previous: slots ``[n]`` of the observations one step earlier, or -1 where unknown.
        """
        self._rows[slots] = observations

    def put(self, rows: Array) -> Array:
        """Copy rows ``[n, ...]`` into new slots ``[n]``, without a reference yet."""
        slots = self.reserve(len(rows))
        self._rows[slots] = rows
        return slots

    def refer(self, slots: Array) -> None:
        """Count one more reference for each entry of ``slots``."""
        np.add.at(self._references, slots, 1)

    def release(self, slots: Array) -> Array:
        """Count one reference less for each entry; return the slots that became free."""
        np.subtract.at(self._references, slots, 1)
        freed = np.unique(slots[self._references[slots] == 0])
        self._free[self._num_free : self._num_free + len(freed)] = freed
        self._num_free += len(freed)
        return freed

    def __getitem__(self, slots: Array) -> Array:
        """A copy of the observations ``[n, ...]`` in these slots ``[n]``."""
        return self._rows.take(slots, axis=0)  # a fifth of the time that indexing takes

    def get_state(self, slots: Array) -> dict[str, Array]:
        """The content of these slots ``[n]``."""
        return {"rows": self[slots]}

    def set_state(self, state: Mapping[str, Array]) -> Array:
        """Restore a state of `get_state` into an empty store; return its slots ``[n]``."""
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


class FrameStore(ObservationStore):
    """Slots for stacks ``[k, ...]``; its own rows are the slots ``[k]`` of their frames.

    Args:
        capacity: see `ObservationStore`.
        shape, dtype: shape and dtype of one stack.
    """

    def __init__(self, capacity: int, shape: tuple[int, ...], dtype: Any) -> None:
        super().__init__(capacity, shape[:1], np.int64)
        self._frames = ObservationStore(capacity, shape[1:], dtype)

    @property
    def nbytes(self) -> int:
        return super().nbytes + self._frames.nbytes

    def fill(self, slots: Array, observations: Array, previous: Array) -> None:
        """Copy stacks ``[n, k, ...]`` into reserved slots ``[n]``.

        Args:
            previous: slots ``[n]`` of the stacks one step earlier, filled before or in this order,
                or -1 where unknown: such a stack shares only the frames that it repeats.
        """
        unfilled = set(slots.tolist())
        for slot, stack, before in zip(
            slots.tolist(), observations, previous.tolist(), strict=True
        ):
            frames = None
            if before >= 0 and before not in unfilled:
                frames = self._continued(before, stack)
            if frames is None:
                frames = self._new(stack)
            unfilled.discard(slot)
            self._rows[slot] = frames
            self._frames.refer(frames)

    def _continued(self, before: int, stack: Array) -> Array | None:
        """Slots of the frames ``[k]``, if the stack is the previous one shifted by one frame."""
        known = self._rows[before, 1:]
        if not np.array_equal(self._frames[known], stack[:-1]):
            return None
        return np.append(known, self._frames.put(stack[-1:]))

    def _new(self, stack: Array) -> Array:
        """Slots of the frames ``[k]`` of a first stack, which repeats the first frame."""
        differs = (stack[1:] != stack[:-1]).reshape(len(stack) - 1, -1).any(axis=1)
        fresh = np.append(True, differs)
        return self._frames.put(stack[fresh])[np.cumsum(fresh) - 1]

    def release(self, slots: Array) -> Array:
        freed = super().release(slots)
        self._frames.release(self._rows[freed].ravel())
        return freed

    def __getitem__(self, slots: Array) -> Array:
        return self._frames[super().__getitem__(slots)]

    def get_state(self, slots: Array) -> dict[str, Array]:
        """The content of these slots ``[n]``, each frame once."""
        used, stacks = np.unique(self._rows[slots], return_inverse=True)
        return {"rows": self._frames[used], "stacks": stacks.reshape(len(slots), -1)}

    def set_state(self, state: Mapping[str, Array]) -> Array:
        frames = self._frames.put(state["rows"])[state["stacks"]]
        self._frames.refer(frames.ravel())
        return self.put(frames)

    def check_valid(self, referring: Array) -> None:
        super().check_valid(referring)
        self._frames.check_valid(self._rows[np.unique(referring)].ravel())


def store_for(capacity: int, observations: Array, following: Array) -> ObservationStore:
    """An empty store for observations ``[n, ...]`` like these and those one step later."""
    kind = FrameStore if _are_stacks(observations, following) else ObservationStore
    return kind(capacity, observations.shape[1:], observations.dtype)


def _are_stacks(observations: Array, following: Array) -> bool:
    if observations.ndim < 4 or observations.shape[1] < 2:  # a frame is an image at least
        return False
    return bool((observations[:, 1:] == following[:, :-1]).all())


def restored_store(capacity: int, state: Mapping[str, Array]) -> tuple[ObservationStore, Array]:
    """A new store that holds a state of `get_state`, and the slots ``[n]`` of its content."""
    shape, dtype = state["rows"].shape[1:], state["rows"].dtype
    store = ObservationStore(capacity, shape, dtype)
    if "stacks" in state:
        store = FrameStore(capacity, (state["stacks"].shape[1], *shape), dtype)
    return store, store.set_state(state)
