"""A CartPole whose step has a fixed price, next to the CartPole-v1 the other benchmarks run.

Imported inside the peers' environments, so it may use gymnasium and the standard library only.
"""

import time
from typing import Any

import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

STEP_S = 100e-6
SLOW_CARTPOLE = "benchmarks.environments:slow_cartpole"


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
