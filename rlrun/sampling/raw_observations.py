"""RawObservations: what agents see, as their environments give it, put together and checked.

Owns how observations of a space become one batch, and which of them is to blame if they do not.
Knows nothing of connectors and policies.

    k  observations
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray

from rlrun.envs.env import observation_problem
from rlrun.envs.episode_vector_env import bad_value_test
from rlrun.sampling.agent_play import AgentFault, News

Array = NDArray[Any]


class RawObservations:
    """Observations of one space.

    Attributes:
        stack: puts a list of them together, batched as gymnasium's vector environments do.
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        self._space = space
        self.stack = _stacker(space)
        self._is_bad = bad_value_test(space)

    def checked(self, raw: list[Any], news: News) -> Any:
        """Put together what came with the news; raises AgentFault if one is not in the space."""
        stacked: Any = []
        with suppress(ValueError, TypeError, KeyError):
            stacked = self.stack(raw)
        if not len(stacked) or self._is_bad(stacked):
            self._blame(news)
        return stacked

    def _blame(self, news: News) -> None:
        """Raise AgentFault for the first observation that is not in the space."""
        agents = news.staying + news.leaving
        observations = news.observations + news.last_observations
        steps = news.steps + news.last_steps
        for agent, observation, step in zip(agents, observations, steps, strict=True):
            problem = observation_problem(self._space, observation)
            if observation is not None and problem is not None:
                raise AgentFault(agent, problem, step - 1)


def _stacker(space: gym.Space[Any]) -> Callable[[list[Any]], Any]:
    """Puts observations of a space together, batched as gymnasium's vector environments do."""
    if isinstance(space, gym.spaces.Box):
        shape, dtype = space.shape, space.dtype

        def stack(observations: list[Any]) -> Array:
            stacked = np.asarray(observations)
            if stacked.shape[1:] != shape or stacked.dtype.kind == "O":
                raise ValueError(f"observations have shape {stacked.shape[1:]}, not {shape}")
            return stacked.astype(dtype, copy=False)

        return stack
    if isinstance(space, gym.spaces.Discrete):
        return lambda observations: np.asarray(observations, np.int64)
    empty: Any = create_empty_array
    return lambda observations: concatenate(space, observations, empty(space, len(observations)))
