"""FrameStore: observations that are stacks of frames, each frame kept once.

A stack of the last k frames shares all but one of them with the stack before it; kept as they come,
stacks of four are four times as large as their frames. Owns which frames make which stack. Answers
as `ObservationStore` does, of which it has two: one of frames, one of the numbers of k frames.

    k  frames of a stack, on the first axis as gymnasium's FrameStackObservation has them
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlrun.replay.observation_store import Array, ObservationStore


def are_stacks(observations: Array, following: Array) -> bool:
    """Whether observations ``[n, ...]`` and those after them ``[n, ...]`` share their frames."""
    if observations.ndim < 4 or observations.shape[1] < 2:  # a frame is an image at least
        return False
    return bool((observations[:, 1:] == following[:, :-1]).all())


class FrameStore:
    """Slots for stacks ``[k, ...]``.

    Args:
        capacity: see `ObservationStore`.
        shape, dtype: of one stack.
    """

    def __init__(self, capacity: int, shape: tuple[int, ...], dtype: Any) -> None:
        self._frames = ObservationStore(capacity, shape[1:], dtype)
        self._stacks = ObservationStore(capacity, shape[:1], np.int64)  # slots of frames, [k]

    @property
    def num_frames(self) -> int:
        """Frames that are held."""
        return self._frames.num_used

    @property
    def nbytes(self) -> int:
        """Bytes of frames and numbers held."""
        return self._frames.nbytes + self._stacks.nbytes

    def reserve(self, count: int) -> Array:
        """So many free slots ``[count]``, without a reference yet, for `fill`."""
        return self._stacks.reserve(count)

    def fill(self, slots: Array, observations: Array, previous: Array) -> None:
        """Take stacks ``[n, k, ...]`` into reserved slots ``[n]``.

        Args:
            previous: slots ``[n]`` of the stacks before these, filled by now or in this order,
                or -1 where none is known: such a stack shares only frames that it repeats.
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
            place = np.array([slot])
            self._stacks.fill(place, frames[None], place)
            self._frames.refer(frames)

    def _continued(self, before: int, stack: Array) -> Array | None:
        """Slots of the frames ``[k]``, if the stack is the one before it moved on by a frame."""
        known = self._stacks[np.array([before])][0, 1:]
        if not np.array_equal(self._frames[known], stack[:-1]):
            return None
        return np.append(known, self._frames.put(stack[-1:]))

    def _new(self, stack: Array) -> Array:
        """Slots of the frames ``[k]`` of a first stack, which repeats the first frame."""
        differs = (stack[1:] != stack[:-1]).reshape(len(stack) - 1, -1).any(axis=1)
        fresh = np.append(True, differs)
        return self._frames.put(stack[fresh])[np.cumsum(fresh) - 1]

    def refer(self, slots: Array) -> None:
        """Count one more reference for each entry of ``slots``."""
        self._stacks.refer(slots)

    def release(self, slots: Array) -> Array:
        """Count one reference less for each entry; returns slots without any: they are free."""
        freed = self._stacks.release(slots)
        self._frames.release(self._stacks[freed].ravel())
        return freed

    def __getitem__(self, slots: Array) -> Array:
        """A copy of the stacks ``[n, k, ...]`` in these slots ``[n]``."""
        return self._frames[self._stacks[slots]]

    def get_state(self, slots: Array) -> dict[str, Array]:
        """What these slots ``[n]`` hold, each frame once."""
        used, stacks = np.unique(self._stacks[slots], return_inverse=True)
        return {"rows": self._frames[used], "stacks": stacks.reshape(len(slots), -1)}

    def set_state(self, state: Mapping[str, Array]) -> Array:
        """Put back into an empty store what `get_state` returned; returns the slots ``[n]``."""
        frames = self._frames.put(state["rows"])[state["stacks"]]
        self._frames.refer(frames.ravel())
        return self._stacks.put(frames)

    def check_valid(self, referring: Array) -> None:
        """Raise AssertionError unless ``referring`` are all references there are."""
        self._stacks.check_valid(referring)
        self._frames.check_valid(self._stacks[np.unique(referring)].ravel())
