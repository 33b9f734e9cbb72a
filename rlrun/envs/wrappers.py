"""Wrappers of environments: those that an experiment names, and the one for masks in infos.

Owns `env_runners.env_wrappers`, and the use of an ``action_mask`` in an environment's infos. Must
not know how environments are made or stepped.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rlrun.config.registry import import_object, is_import_path, wrapper_path
from rlrun.config.schema import UseSpec
from rlrun.data.nested import ACTION_MASK, OBSERVATION, has_action_mask


@dataclass(frozen=True)
class EnvWrapper:
    """One of `env_runners.env_wrappers`, with its code, so that it can be sent to processes."""

    name: str
    wrap: Any
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, env: Any) -> Any:
        """Wrap the environment; exceptions get a note that names the wrapper."""
        try:
            return self.wrap(env, **copy.deepcopy(dict(self.kwargs)))
        except Exception as error:
            error.add_note(f"raised by the wrapper {self.name}")
            raise


def find_wrappers(specs: Sequence[UseSpec]) -> tuple[EnvWrapper, ...]:
    """The wrappers of a setting, the innermost one first."""
    wrappers = []
    for spec in specs:
        kwargs = dict(spec.kwargs)
        if not is_import_path(spec.use):  # gymnasium's need tuples, and a file has lists
            kwargs = {k: tuple(v) if isinstance(v, list) else v for k, v in kwargs.items()}
        wrappers.append(EnvWrapper(spec.use, import_object(wrapper_path(spec.use)), kwargs))
    return tuple(wrappers)


class InfoActionMask(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Copies the ``action_mask`` of each info into the observation, where policies find it.

    Observations become ``{"observation": ..., "action_mask": ...}``; a Dict gets the mask as one
    more entry. The info of an episode's last step need not have one.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        inner, actions = env.observation_space, env.action_space
        assert isinstance(actions, spaces.Discrete | spaces.MultiDiscrete)
        size = int(np.sum(actions.nvec if isinstance(actions, spaces.MultiDiscrete) else actions.n))
        self._nested = isinstance(inner, spaces.Dict)
        parts = inner.spaces if isinstance(inner, spaces.Dict) else {OBSERVATION: inner}
        mask = spaces.Box(0, 1, (size,), np.int8)
        self.observation_space = spaces.Dict({**parts, ACTION_MASK: mask})
        self._all = np.ones(size, np.int8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._masked(observation, info, over=False), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step, with the mask for the next action."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        observation = self._masked(observation, info, over=terminated or truncated)
        return observation, reward, terminated, truncated, info

    def _masked(self, observation: Any, info: Mapping[str, Any], *, over: bool) -> Any:
        mask = info.get(ACTION_MASK, self._all if over else None)
        if mask is None or np.shape(mask) != self._all.shape:
            found = "none" if mask is None else f"one of shape {np.shape(mask)}"
            expected = (
                f"each info must have an action_mask of shape {self._all.shape}, as others do"
            )
            raise ValueError(f"{expected}, also that of reset(); this one has {found}")
        parts = observation if self._nested else {OBSERVATION: observation}
        return {**parts, ACTION_MASK: (np.asarray(mask) != 0).astype(np.int8)}


def has_info_mask(env: gymnasium.Env[Any, Any], info: Mapping[str, Any]) -> bool:
    """Whether an info of the environment says which of its discrete actions are allowed."""
    discrete = isinstance(env.action_space, spaces.Discrete | spaces.MultiDiscrete)
    return discrete and ACTION_MASK in info and not has_action_mask(env.observation_space)
