"""The environments the benchmarks run: CartPole-v1 and a CartPole whose step has a fixed price.

Imported inside the peers' environments, so it may use gymnasium and the standard library only.
"""

import time
from typing import Any

import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

STEP_S = 100e-6


class SlowCartPole(gym.Wrapper):
    """CartPole-v1 whose `step` keeps the CPU busy until `step_s` seconds have passed.

    Busy and not asleep: a simulator is CPU-bound, and a sleeping env would let two runners share
    one core for free.
    """

    def __init__(self, step_s: float = STEP_S) -> None:
        super().__init__(gym.wrappers.TimeLimit(CartPoleEnv(), max_episode_steps=500))
        self._step_s = step_s

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        until = time.perf_counter() + self._step_s
        transition = self.env.step(action)
        while time.perf_counter() < until:
            pass
        return transition


SLOW_CARTPOLE = "benchmarks.environments:SlowCartPole"
