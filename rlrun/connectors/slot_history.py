"""SlotHistory: the last steps of each slot's running episode, for custom connectors.

A slot is one agent of one sub-environment; with several agents, slots do not step together. The
history reaches back over fragments, by `env_runners.episode_lookback_horizon` steps, so that no
result depends on where fragments were cut. Must not know of environments, policies or connectors.

    B  slots    n  rows of the present call    H  horizon    k  steps asked for, at most H
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.data.column_data import Array


class SlotHistory:
    """The last H steps of B slots, of the running episodes alone.

    Args:
        num_slots: B.
        horizon: H.
        space: of one raw observation.

    Attributes:
        slots: slots of the rows of the present call, int [n].
        update: False in evaluation, where connectors must not learn from the rows.
        no_action: zeros in the shape and dtype of one action of the policy.
    """

    no_action: Array

    def __init__(self, num_slots: int, horizon: int, space: gym.Space[Any]) -> None:
        self.num_slots, self.horizon = num_slots, horizon
        self._space = space
        self.slots: Array = np.arange(num_slots)
        self.update = True
        # Ring buffers of H + 1 places, [H + 1, B, ...].
        self._now = np.zeros(num_slots, np.int64)  # place of the present step
        self._steps = np.zeros(num_slots, np.int64)
        self._rings: dict[str, Array] = {}

    @property
    def steps(self) -> Array:
        """The step of each row's episode, int [n]; 0 at the first observation."""
        return self._steps[self.slots]

    def rewards(self, k: int) -> Array:
        """The last k rewards, as the environments returned them, float32 [n, k], latest last.

        Steps before the episode are 0.

        Raises:
            ValueError: k is greater than H; also in `actions` and `observations`.
        """
        return self._last("rewards", k, np.zeros((), np.float32))

    def actions(self, k: int) -> Array:
        """The last k actions of the policy, [n, k, ...]; steps before the episode are 0."""
        return self._last("actions", k, self.no_action)

    def observations(self, k: int) -> Any:
        """The last k observations and the present one, [n, k + 1, ...].

        They are as the environments returned them. Before the episode its first one is repeated.
        """
        self._check(k)
        back = np.minimum(np.arange(k, -1, -1), self.steps[:, None])
        places = (self._now[self.slots, None] - back) % (self.horizon + 1)
        rings = (self._rings[f"obs_{i}"] for i in count())
        return _nest(self._space, (ring[places, self.slots[:, None]] for ring in rings))

    def _last(self, name: str, k: int, nothing: Array) -> Array:
        self._check(k)
        ring = self._rings.get(name)
        if ring is None:
            return np.zeros((len(self.slots), k, *nothing.shape), nothing.dtype)
        back = np.arange(k, 0, -1)
        places = (self._now[self.slots, None] - back) % (self.horizon + 1)
        rows = ring[places, self.slots[:, None]]
        rows[back > self.steps[:, None]] = 0
        return rows

    def _check(self, k: int) -> None:
        if not 0 <= k <= self.horizon:
            raise ValueError(
                f"a connector looks back {k} steps, but env_runners.episode_lookback_horizon is "
                f"{self.horizon}; episode_lookback_horizon: {k} works"
            )

    def begin(self, slots: Array) -> None:
        """Begin an episode in these slots; its first observations come next."""
        self._steps[slots] = 0

    def see(self, observations: Any, slots: Array, *, update: bool) -> None:
        """Set the raw observations of these slots, which are the rows of the next call."""
        self.slots, self.update = slots, update
        for i, leaf in enumerate(leaves(self._space, observations)):
            self._ring(f"obs_{i}", leaf)[self._now[slots], slots] = leaf

    def advance(
        self, actions: Array, rewards: Array, valid: Array | None, slots: Array | None = None
    ) -> None:
        """Add a step of these slots.

        Args:
            actions: the policy's, [n, ...].
            rewards: as the environments returned them, [n].
            valid: bool [B], False where the step was an environment's own reset; None if none was.
            slots: int [n]; None: all.
        """
        if slots is None:
            slots = np.arange(self.num_slots)
        places = self._now[slots]
        self._ring("actions", actions)[places, slots] = actions
        self._ring("rewards", rewards.astype(np.float32))[places, slots] = rewards
        self._now[slots] = (places + 1) % (self.horizon + 1)
        self._steps[slots] += 1
        if valid is not None:
            self._steps[~valid] = 0

    def _ring(self, name: str, rows: Array) -> Array:
        if name not in self._rings:
            shape = (self.horizon + 1, self.num_slots, *rows.shape[1:])
            self._rings[name] = np.zeros(shape, rows.dtype)
        return self._rings[name]

    def get_state(self) -> dict[str, Any]:
        """The history."""
        rings = {name: ring.copy() for name, ring in self._rings.items()}
        return {"now": self._now.copy(), "steps": self._steps.copy(), "rings": rings}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`."""
        self._now = np.array(state["now"])
        self._steps = np.array(state["steps"])
        self._rings = {name: np.array(ring) for name, ring in state["rings"].items()}


def leaves(space: gym.Space[Any], observations: Any) -> list[Array]:
    """The arrays [n, ...] of a batch of observations of a nested space."""
    if isinstance(space, gym.spaces.Dict):
        parts = [(child, observations[key]) for key, child in space.spaces.items()]
    elif isinstance(space, gym.spaces.Tuple):
        parts = list(zip(space.spaces, observations, strict=True))
    else:
        return [np.asarray(observations)]
    return [leaf for child, part in parts for leaf in leaves(child, part)]


def _nest(space: gym.Space[Any], arrays: Iterator[Array]) -> Any:
    """The inverse of `leaves`."""
    if isinstance(space, gym.spaces.Dict):
        return {key: _nest(child, arrays) for key, child in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_nest(child, arrays) for child in space.spaces)
    return next(arrays)
