"""Horizon with several agents: as in `horizon`, where flags are dicts by agent.

Owns what becomes of the dicts of a step. Knows nothing of policies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlrun.envs.env import time_limit_of
from rlrun.envs.horizon import time_limit
from rlrun.envs.multi_agent_env import ALL

if TYPE_CHECKING:
    from rlrun.config.schema import EnvRunnersConfig

Flags = Mapping[Any, bool]


class AgentsHorizon:
    """What becomes of the flags of each step of one lane.

    Args:
        soft: whether episodes may go over into others without a reset; not in evaluation.
    """

    def __init__(self, settings: EnvRunnersConfig, *, soft: bool) -> None:
        self._horizon = math.inf if settings.horizon is None else settings.horizon
        self._soft, self._no_done = settings.soft_horizon and soft, settings.no_done_at_end

    def flags(self, step: int, terminateds: Flags, truncateds: Flags) -> tuple[Flags, Flags, bool]:
        """Terminated and truncated as learning is to see them, and whether a soft horizon passed.

        Args:
            step: env steps of the episode, this one included.
        """
        over = terminateds.get(ALL, False) or truncateds.get(ALL, False)
        reached = step >= self._horizon and not over
        if reached and not self._soft:
            truncateds = {**truncateds, ALL: True}
        if self._no_done and True in terminateds.values():
            truncateds = {**truncateds, **{name: True for name in terminateds if terminateds[name]}}
            terminateds = {}
        return terminateds, truncateds, reached and self._soft


def make_agents_horizon(settings: EnvRunnersConfig, *, soft: bool) -> AgentsHorizon | None:
    """The limit that the settings ask for, None for none; see `AgentsHorizon`."""
    if settings.horizon is None and not settings.no_done_at_end:
        return None
    return AgentsHorizon(settings, soft=soft)


def raise_time_limits(env: Any, settings: EnvRunnersConfig) -> None:
    """Let the copies in an environment of `make_multi_agent` not end before the horizon.

    Of other environments nobody knows where their limits are.
    """
    for copy in getattr(env, "copies", {}).values():
        wrapper = time_limit_of(copy)
        if wrapper is not None:
            wrapper._max_episode_steps = time_limit(wrapper._max_episode_steps, settings)
