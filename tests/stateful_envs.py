"""Environments that hand out their state, rightly or wrongly, and count their steps."""

from typing import ClassVar

import gymnasium
import numpy as np

from rlrun import make_multi_agent
from rlrun.envs.multi_agent_examples import TakeTurns


class Walk(gymnasium.Env):
    """A random walk with a drift that the observation does not show.

    Args:
        fault: what is wrong with the state; None for nothing.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps_of_all = 0

    def __init__(self, fault=None):
        self.fault = fault
        self.at, self.drift, self.step_number = np.zeros(1), 0.0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at[:] = self.drift = self.np_random.normal()
        self.step_number = 0
        return self.at.astype(np.float32), {}

    def step(self, action):
        Walk.steps_of_all += 1
        self.step_number += 1
        self.at += self.drift + action + self.np_random.normal()
        return self.at.astype(np.float32), float(self.at[0]), self.step_number == 19, False, {}

    def get_state(self):
        if self.fault == "raises":
            raise ValueError("no state today")
        state = {"at": self.at, "drift": self.drift, "step_number": self.step_number}
        if self.fault == "forgets":
            del state["drift"]
        return {**state, "object": object()} if self.fault == "cannot be saved" else state

    def set_state(self, state):
        self.at = state["at"]
        self.drift, self.step_number = state.get("drift", 0.0), state["step_number"]


class Unchanging(gymnasium.Env):
    """Observes the same in each step, pays the step's number, and lasts 20 steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    raises = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_number = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.step_number += 1
        if self.raises and self.step_number == 3:
            raise RuntimeError("the simulator is lost")
        return np.zeros(1, np.float32), float(self.step_number), self.step_number == 20, False, {}


class Halved(gymnasium.RewardWrapper):
    """A user's wrapper without a memory."""

    def reward(self, reward):
        return reward / 2


class Walks(gymnasium.vector.VectorEnv):
    """Walks that reset themselves in the same step, with a generator and a state for all."""

    metadata: ClassVar = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}

    def __init__(self, num_envs=2):
        self.num_envs = num_envs
        self.single_observation_space = Walk.observation_space
        self.single_action_space = Walk.action_space
        self.observation_space = gymnasium.vector.utils.batch_space(
            Walk.observation_space, num_envs
        )
        self.action_space = gymnasium.vector.utils.batch_space(Walk.action_space, num_envs)
        self.envs = [Walk() for _ in range(num_envs)]  # not plain, so no state but its own

    def reset(self, *, seed=None, options=None):
        assert seed is None or isinstance(seed, int)
        super().reset(seed=seed)
        return np.stack([self._reset(env) for env in self.envs]), {}

    def _reset(self, env):
        return env.reset(seed=int(self.np_random.integers(100)))[0]

    def step(self, actions):
        results = [env.step(action) for env, action in zip(self.envs, actions, strict=True)]
        observations = np.stack([one[0] for one in results])
        done, infos = np.array([one[2] for one in results]), {}
        if done.any():
            infos["final_obs"] = observations.copy()
            for i in np.flatnonzero(done):
                observations[i] = self._reset(self.envs[i])
        rewards = np.array([one[1] for one in results])
        return observations, rewards, done, np.zeros_like(done), infos

    def get_state(self):
        generators = [env.np_random.bit_generator.state for env in self.envs]
        return {"walks": [env.get_state() for env in self.envs], "generators": generators}

    def set_state(self, state):
        parts = zip(self.envs, state["walks"], state["generators"], strict=True)
        for env, walk, generator in parts:
            env.set_state(walk)
            env.np_random.bit_generator.state = generator


two_walks = make_multi_agent(Walk)


class Turns(TakeTurns):
    """Only one agent acts in each step."""

    def get_state(self):
        return {"number": self._number, "turn": self._turn}

    def set_state(self, state):
        self._number, self._turn = state["number"], state["turn"]
