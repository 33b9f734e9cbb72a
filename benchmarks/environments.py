"""Environments beside gymnasium's own: steps of a fixed price, starts that all policies share.

Imported inside the peers' environments, so it may use gymnasium, numpy and the standard library
only.
"""

import itertools
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

STEP_S = 100e-6
SLEEP_S = 10e-3


class SlowCartPole(CartPoleEnv):  # type: ignore[misc]
    """CartPole whose `step` keeps the CPU busy until `step_s` seconds have passed.

    Busy and not asleep: a simulator is CPU-bound, and a sleeping env would let two runners share
    one core for free.
    """

    def __init__(self, step_s: float = STEP_S) -> None:
        super().__init__()
        self._step_s = step_s

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        until = time.perf_counter() + self._step_s
        transition = super().step(action)
        while time.perf_counter() < until:
            pass
        return transition


def slow_cartpole(step_s: float = STEP_S) -> gym.Env[Any, Any]:
    """`SlowCartPole` with the time limit of CartPole-v1."""
    return gym.wrappers.TimeLimit(SlowCartPole(step_s), max_episode_steps=500)


class SleepingEnv(gym.Env[Any, Any]):
    """A simulator elsewhere: `step` sleeps for `step_s` seconds and takes no processor time here.

    Observations are 32 float32 numbers, episodes last 64 steps; nothing is to be learned.
    """

    observation_space = gym.spaces.Box(-1.0, 1.0, (32,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, step_s: float = SLEEP_S) -> None:
        self._step_s = step_s

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = 64
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self._step_s)
        self._left -= 1
        return self._observation(), float(action), self._left == 0, False, {}

    def _observation(self) -> Any:
        return self.np_random.uniform(-1.0, 1.0, 32).astype(np.float32)


class NumberedStarts(gym.Wrapper[Any, Any, Any, Any]):
    """Its n-th reset, counted over all environments of the process, has the seed n modulo 100.

    The seed that is asked for is ignored. 100 episodes in a row thus have the same 100 starts for
    every policy, wherever a library begins to count and however often it makes environments.
    """

    _resets = itertools.count()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        return self.env.reset(seed=next(self._resets) % 100, options=options)


def numbered_starts(id: str) -> gym.Env[Any, Any]:
    """An environment that is registered with gymnasium, with `NumberedStarts`."""
    return NumberedStarts(gym.make(id))
