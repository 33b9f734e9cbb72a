"""Action masks: observations that say which actions are allowed.

An observation is masked if its space is a Dict with the key ``action_mask``, one number for each
category of a Discrete or MultiDiscrete action space, 0 where it is forbidden. Distribution inputs
and action values of forbidden actions are `FORBIDDEN` wherever a policy acts or learns, so
probabilities, entropies, divergences and maxima count allowed actions alone. Must not import torch.

    N  rows        P  distribution inputs, one for each category
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.config.problems import misfit
from rlrun.data.column_data import Array
from rlrun.data.nested import ACTION_MASK, has_action_mask
from rlrun.policies.action_sampling import FORBIDDEN, action_layout


class NoAllowedActionError(ValueError):
    """An action was due where the mask allows none.

    Attributes:
        row: of the first such observation among those that were to be answered.
    """

    def __init__(self, row: int) -> None:
        super().__init__(f"the action mask of row {row} allows no action")
        self.row = row


class ActionMask:
    """Which actions are allowed in observations of a space.

    Raises:
        ConfigError: the mask does not fit the action space.
    """

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
        layout = action_layout(action_space)
        self.categories = layout.leaves[0].categories
        mask_space = observation_space[ACTION_MASK]  # type: ignore[index]
        if layout.nested or not self.categories:
            message = f"has actions in {action_space}: {ACTION_MASK!r} is only for discrete ones"
        elif mask_space.shape != (layout.num_inputs,):
            message = f"{mask_space} does not have {layout.num_inputs} numbers, one for each action"
        else:
            self._starts = np.cumsum([0, *self.categories[:-1]])
            return
        raise misfit("env", f"the observation's {ACTION_MASK!r}: {message}")

    def apply(self, inputs: Array, observations: Array) -> Array:
        """The inputs ``[N, P]``, `FORBIDDEN` where observations ``[N]`` do not allow the action.

        Raises:
            NoAllowedActionError: an observation allows no action, or no choice of a component.
        """
        allowed = observations[ACTION_MASK] != 0
        some = np.logical_or.reduceat(allowed, self._starts, axis=1)
        if not some.all():
            raise NoAllowedActionError(int(some.all(axis=1).argmin()))
        return np.where(allowed, inputs, FORBIDDEN)


def action_mask_of(
    observation_space: gym.Space[Any], action_space: gym.Space[Any]
) -> ActionMask | None:
    """The mask of a space's observations, if they have one."""
    masked = has_action_mask(observation_space)
    return ActionMask(observation_space, action_space) if masked else None
