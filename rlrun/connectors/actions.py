"""The built-in connector of actions: unsquashing, clipping, and the shape of the action space.

Only the environments receive the result; batches keep the policy's own actions. Must not know of
environments, networks or torch. For the policy's arrays see `policies.action_sampling`.

    n  rows
"""

from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.connectors.connector import Connector
from rlrun.data.column_data import Array
from rlrun.policies.action_sampling import ActionLeaf, action_layout


class ActionPipeline(Connector):
    """Turns the policy's action array [n] or [n, K] into actions for a batch of environments.

    The result is read-only: if an environment writes into its action, numpy raises, and the
    training data are not corrupted.

    Args:
        action_space: of one environment.
        normalize: unsquash actions in a Box, in which the policy acts as in [-1, 1]: a dimension
            with bounds becomes ``low + (a + 1) (high - low) / 2``, clipped to them; one with a
            single bound is clipped to it, and moved so that -1 or 1 gives it.
        clip: clip actions that are not unsquashed to the bounds.

    Attributes:
        identity: whether actions pass unchanged: for a Discrete space of int64 from 0.
        leaves: the transformation of each leaf's columns.
    """

    def __init__(self, action_space: gym.Space[Any], *, normalize: bool, clip: bool) -> None:
        layout = action_layout(action_space)
        self._space = action_space
        self.leaves = [LeafActions(leaf, normalize, clip) for leaf in layout.leaves]
        self._nested = layout.nested
        plain = layout.kind == "categorical" and action_space.dtype == np.int64
        self.identity = plain and action_space.start == 0  # type: ignore[attr-defined]

    def __call__(self, actions: Array) -> Any:
        """A batch of the policy's actions -> actions of the space, batched as in gymnasium.

        Nested spaces give a dict or tuple with one array [n, ...] for each leaf.
        """
        if self.identity:
            return actions
        if not self._nested:
            return self.leaves[0](actions)
        columns = iter([leaf(actions[:, leaf.columns]) for leaf in self.leaves])
        return _nest(self._space, columns)


class LeafActions:
    """The transformation of one leaf's columns: ``columns * scale + offset``, within ``bounds``.

    Attributes:
        columns: the leaf's columns in the policy's actions.
        shape, dtype: of one action of the leaf.
        scale, offset, bounds: None if not needed.
    """

    def __init__(self, leaf: ActionLeaf, normalize: bool, clip: bool) -> None:
        space = leaf.space
        self.columns = leaf.columns
        self.shape: tuple[int, ...] = space.shape or ()
        self.dtype = space.dtype
        self.offset: Array | None = None
        self.scale: Array | None = None
        self.bounds: tuple[Array, Array] | None = None
        if isinstance(space, gym.spaces.Box):
            self._plan_box(space, normalize, clip)
        elif isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
            start = np.asarray(space.start, dtype=space.dtype)
            self.offset = start if np.any(start) else None

    def _plan_box(self, space: gym.spaces.Box, normalize: bool, clip: bool) -> None:
        if space.dtype.kind != "f":
            self.offset = space.low if np.any(space.low) else None
            return
        below, above = space.bounded_below, space.bounded_above
        bounded = bool((below | above).any())
        if normalize and bounded:
            # In float64: the difference of two float32 bounds may overflow.
            low, high = space.low.astype(np.float64), space.high.astype(np.float64)
            low = np.where(below, low, np.where(above, high - 2.0, -1.0))
            high = np.where(above, high, low + 2.0)
            self.scale = ((high - low) / 2).astype(space.dtype)
            self.offset = ((high + low) / 2).astype(space.dtype)
        if bounded and (normalize or clip):
            self.bounds = space.low, space.high

    def __call__(self, columns: Array) -> Array:
        """[n] or [n, width] -> read-only [n, *shape] of the space's type."""
        actions = columns.reshape(len(columns), *self.shape).astype(self.dtype, copy=False)
        if self.scale is not None:
            actions = actions * self.scale
        if self.offset is not None:
            actions = actions + self.offset
        if self.bounds is not None:
            actions = np.minimum(np.maximum(actions, self.bounds[0]), self.bounds[1])
        actions = actions.view()
        actions.flags.writeable = False
        return actions

    def inverse(self, actions: Array) -> Array:
        """Actions of the space ``[n, *shape]`` -> the columns that give them, ``[n, width]``."""
        columns, dtype = actions, np.int64 if self.scale is None else np.float64
        if self.offset is not None:
            columns = np.subtract(columns, self.offset, dtype=dtype)
        if self.scale is not None:
            moves = self.scale != 0.0  # not where the bounds leave no choice
            columns = np.divide(columns, self.scale, out=np.zeros_like(columns), where=moves)
            assert self.bounds is not None
            low, high = map(np.isfinite, self.bounds)
            columns = np.clip(columns, np.where(low, -1.0, -np.inf), np.where(high, 1.0, np.inf))
        return columns.reshape(len(actions), -1)


def _nest(space: gym.Space[Any], leaves: Any) -> Any:
    """Put the leaves, in layout order, back into the structure of the space."""
    if isinstance(space, gym.spaces.Dict):
        built = {key: _nest(space.spaces[key], leaves) for key in sorted(space.spaces)}
        return {key: built[key] for key in space.spaces}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_nest(child, leaves) for child in space.spaces)
    return next(leaves)
