"""Horizon: the env runner's limit on the steps of an episode, besides the environment's own.

Owns what `env_runners.horizon`, `soft_horizon`, `horizon_terminates` and `no_done_at_end` do to the
flags of a step. The limit is a truncation, bootstrapped from the value of the next observation,
unless the settings say otherwise. Numpy alone.

    B  sub-environments
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rlrun.config.problems import misfit
from rlrun.data.column_data import Array

if TYPE_CHECKING:
    from rlrun.config.schema import EnvRunnersConfig

Flags = Mapping[Any, bool]

ALL = "__all__"
"""Key of the dicts that says whether the episode is over for all agents."""


class Horizon:
    """Changes the flags of each step by the settings of the horizon.

    Args:
        soft: whether to allow a soft horizon, at which the next episode begins without a reset;
            not in evaluation.

    Attributes:
        passed: bool ``[B]``, set by `flags`: sub-environments at a soft horizon, whose next episode
            begins without a reset.
    """

    def __init__(self, settings: EnvRunnersConfig, *, soft: bool = True) -> None:
        self._horizon = math.inf if settings.horizon is None else settings.horizon
        self._soft, self._no_done = settings.soft_horizon and soft, settings.no_done_at_end
        self._terminates = settings.horizon_terminates
        self.passed = np.zeros(0, np.bool_)

    def flags(
        self, steps: Array, terminateds: Array, truncateds: Array, valid: Array | None = None
    ) -> tuple[Array, Array]:
        """Terminated and truncated, bool ``[B]``, as batches hold them.

        Args:
            steps: steps of the running episodes, this one included, int ``[B]``.
            valid: False where the step was not a transition; None: all were.
        """
        reached = steps >= self._horizon
        if valid is not None:
            reached &= valid
        if self._terminates:
            return terminateds | reached, truncateds & ~reached
        over = reached & ~(terminateds | truncateds)
        self.passed = over & self._soft
        truncateds = truncateds | (over & (not self._soft))
        if self._no_done:
            truncateds = truncateds | terminateds
            terminateds = np.zeros_like(terminateds)
        return terminateds, truncateds

    def flags_by_agent(
        self, step: int, terminateds: Flags, truncateds: Flags
    ) -> tuple[Flags, Flags, bool]:
        """The same for one sub-environment with several agents, and whether a soft horizon passed.

        Args:
            step: env steps of the episode, this one included.
            terminateds, truncateds: flags of each agent, and of all together.
        """
        if self._terminates:
            if step >= self._horizon:
                terminateds, truncateds = {**terminateds, ALL: True}, {}
            return terminateds, truncateds, False
        over = terminateds.get(ALL, False) or truncateds.get(ALL, False)
        reached = step >= self._horizon and not over
        if reached and not self._soft:
            truncateds = {**truncateds, ALL: True}
        if self._no_done and True in terminateds.values():
            truncateds = {**truncateds, **{name: True for name in terminateds if terminateds[name]}}
            terminateds = {}
        return terminateds, truncateds, reached and self._soft


def make_horizon(
    settings: EnvRunnersConfig, *, soft: bool = True, can_reset: bool = True
) -> Horizon | None:
    """The horizon of the settings; None if they set none.

    Args:
        can_reset: whether a single sub-environment can be reset.

    Raises:
        ConfigError: episodes would have to end in an environment that cannot start new ones.
    """
    if settings.horizon is None and not settings.no_done_at_end:
        return None
    if settings.horizon is not None and not settings.soft_horizon and not can_reset:
        message = (
            "it must end episodes, and this vector environment cannot reset one sub-environment "
            "alone; let it limit its episodes itself, or set soft_horizon"
        )
        raise misfit("env_runners.horizon", message)
    return Horizon(settings, soft=soft)


def time_limit(limit: float, settings: EnvRunnersConfig) -> float:
    """An environment's own limit, if below the horizon raised to it; inf if that one is soft."""
    if settings.horizon is None or limit > settings.horizon:
        return limit
    return math.inf if settings.soft_horizon else settings.horizon
