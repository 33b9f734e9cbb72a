"""Privileged observations, which only a value function or critics see (`model.privileged`).

In asymmetric actor-critic (Pinto et al. 2017, arXiv:1710.06542) the value function sees what a
simulator knows and a robot cannot measure. The policy's network has no such inputs, so it can act
where they do not exist. In flattened observations their numbers come last. Must not import torch.

    N  rows    D  numbers of a flattened observation    K  those that the policy sees
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
from gymnasium.vector.utils import batch_space

from rlrun.config.problems import misfit
from rlrun.config.registry import no_such
from rlrun.data.column_data import Array


class PrivilegedBox(gym.spaces.Box):
    """Flattened observations ``[D]``; the policy sees their first K numbers.

    Args:
        low, high: bounds of all D numbers.
        num_seen: K.
    """

    def __init__(self, low: Array, high: Array, num_seen: int) -> None:
        super().__init__(low, high, dtype=low.dtype.type)
        self.num_seen = num_seen


class PolicyInput:
    """What a policy's network sees of observations.

    Args:
        space: of the observations, without an action mask.
        privileged: entries that the policy must not see, of a Dict or of what was flattened.

    Attributes:
        space: of what the policy sees.
        is_partial: whether anything is left out.

    Raises:
        ConfigError: the space has no such entries, or no others.
    """

    def __init__(self, space: gym.Space[Any], privileged: Sequence[str]) -> None:
        self.is_partial = bool(privileged)
        self.space, self._num_seen = space, 0
        if isinstance(space, PrivilegedBox):
            self._num_seen = k = space.num_seen
            self.space = gym.spaces.Box(space.low[:k], space.high[:k], dtype=space.low.dtype.type)
        elif privileged:
            self.space = gym.spaces.Dict(seen_entries(space, privileged))

    def __call__(self, observations: Any) -> Any:
        """The policy's part of observations, an array or tensor [N, D] or a dict of such."""
        if not self.is_partial:
            return observations
        if self._num_seen:
            return observations[:, : self._num_seen]
        return {key: observations[key] for key in self.space}  # type: ignore[attr-defined]


def stand_ins(whole: gym.Space[Any], needed: gym.Space[Any], count: int) -> dict[str, Any]:
    """Arbitrary entries, a batch of ``count`` each, for those that a Dict has and another lacks.

    They let a policy act where nothing privileged is known; its actions do not depend on them.
    """
    if whole is needed:
        return {}
    assert isinstance(whole, gym.spaces.Dict)
    assert isinstance(needed, gym.spaces.Dict)
    missing = {key: part for key, part in whole.items() if key not in needed.spaces}
    batched = batch_space(gym.spaces.Dict(missing), count)
    batched.seed(0)
    return batched.sample()


def seen_entries(space: gym.Space[Any], privileged: Sequence[str]) -> dict[str, gym.Space[Any]]:
    """The entries of a Dict that are not privileged.

    Raises:
        ConfigError: see `PolicyInput`.
    """
    if not isinstance(space, gym.spaces.Dict):
        message = f"names entries of a Dict observation, but the observation space is {space}"
        raise misfit("model.privileged", message)
    for name in privileged:
        if name not in space.spaces:
            message = no_such("entry", name, map(str, space.spaces))
            raise misfit("model.privileged", f"in the observation {message}")
    seen = {key: part for key, part in space.spaces.items() if key not in privileged}
    if not seen:
        raise misfit("model.privileged", "leaves the policy nothing to act on")
    return seen
