"""Environments with nested observations, and masks of allowed actions in them."""

import gymnasium as gym
import numpy as np

from rlrun.envs.examples import PlayCards
from rlrun.envs.multi_agent_env import make_multi_agent

spaces = gym.spaces


class RandomObservations(gym.Env):
    """Observations are samples of the space."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self.steps = 0
        return self.see(), {}

    def see(self):
        return self.observation_space.sample()


class Sights(RandomObservations):
    """Random observations of every kind; an action that the last one forbids raises.

    Args:
        nothing_at: step whose mask allows nothing.
    """

    def __init__(self, length=7, nothing_at=None):
        self.observation_space = spaces.Dict(
            camera=spaces.Box(0, 255, (8, 6), np.uint8),
            position=spaces.Box(-1, 1, (2,), np.float64),
            speed=spaces.Box(-1, 1, (), np.float32),
            tokens=spaces.Tuple((spaces.Discrete(3, start=1), spaces.MultiDiscrete([2, 4]))),
            action_mask=spaces.MultiBinary(4),
        )
        self.action_space = spaces.Discrete(4)
        self.length, self.nothing_at = length, nothing_at

    def see(self):
        self.seen = super().see()
        self.seen["action_mask"][self.steps % 4] = 1
        if self.steps == self.nothing_at:
            self.seen["action_mask"][:] = 0
        return self.seen

    def step(self, action):
        assert self.seen["action_mask"][action], f"action {action} is forbidden"
        reward = float(self.seen["position"][0] * action)
        self.steps += 1
        return self.see(), reward, False, self.steps == self.length, {}


class Flat(gym.ObservationWrapper):
    """CartPole."""

    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))

    def observation(self, observation):
        return observation


class Nested(Flat):
    """CartPole, its observation in two parts."""

    def __init__(self):
        super().__init__()
        box = self.env.observation_space
        parts = {
            "a": spaces.Box(box.low[:1], box.high[:1]),
            "b": spaces.Tuple((spaces.Box(box.low[1:], box.high[1:]),)),
        }
        self.observation_space = spaces.Dict(parts)

    def observation(self, observation):
        return {"a": observation[:1], "b": (observation[1:],)}


class Angle(Flat):
    """CartPole, of which only the angle is seen: a number without dimensions."""

    def __init__(self, nested=False):
        super().__init__()
        self.nested, box = nested, self.env.observation_space
        self.observation_space = spaces.Box(box.low[2], box.high[2], ())
        if nested:
            self.observation_space = spaces.Dict(angle=self.observation_space)

    def observation(self, observation):
        angle = np.array(observation[2])
        return {"angle": angle} if self.nested else angle


two_sights = make_multi_agent(Sights)
two_hands = make_multi_agent(PlayCards)
