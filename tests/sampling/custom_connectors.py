"""Connectors as a user would write them; imported by import path."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

from rlrun import Connector
from rlrun.connectors.filters import RunningStat


class Recent(Connector):
    """Puts the last k rewards, actions and observations' second numbers behind the observation."""

    def __init__(self, k=2):
        self.k = k

    def connect(self, space):
        return gym.spaces.Box(-np.inf, np.inf, (space.shape[0] + 3 * self.k,), np.float32)

    def __call__(self, observations, history):
        actions = np.zeros((len(observations), self.k), np.float32)
        if (history.steps > 0).any():
            actions[:] = history.actions(self.k)
        earlier = history.observations(self.k)[:, :-1, 1]
        parts = [observations, history.rewards(self.k), actions, earlier]
        return np.concatenate(parts, axis=1).astype(np.float32)


class Centred(Connector):
    """Subtracts the mean of all observations so far."""

    def connect(self, space):
        self.stat, self.news = RunningStat(space.shape), RunningStat(space.shape)
        return space

    def __call__(self, observations, history):
        if history.update:
            self.stat.update(observations)
            self.news.update(observations)
        return (observations - self.stat.mean).astype(np.float32)

    def get_state(self):
        return {"stat": self.stat.get_state(), "news": self.news.get_state()}

    def set_state(self, state):
        self.stat.set_state(state["stat"])
        self.news.set_state(state["news"])

    def flush_deltas(self):
        deltas, self.news = self.news.get_state(), RunningStat(self.news.mean.shape)
        return deltas

    def apply_deltas(self, deltas):
        for delta in deltas:
            self.stat.merge(RunningStat.from_state(delta))


class Sticky(Connector):
    """Repeats what was sent last with some probability: has a memory of its own and draws."""

    def __init__(self, env, seed, p=0.5):
        self.p, self.rng = p, np.random.default_rng(seed)
        self.sent = np.zeros(env.num_envs, np.int64)

    def __call__(self, actions, history):
        repeated = (self.rng.random(len(actions)) < self.p) & (history.steps > 0)
        self.sent = np.where(repeated, self.sent, actions)
        return self.sent

    def get_state(self):
        return {"sent": self.sent.copy(), "rng": self.rng.bit_generator.state}

    def set_state(self, state):
        self.sent = np.array(state["sent"])
        self.rng.bit_generator.state = state["rng"]


class ThreePushes(Connector):
    """The policy picks one of three torques."""

    def connect(self, space):
        assert space.shape == (1,)
        return gym.spaces.Discrete(3)

    def __call__(self, actions, history):
        return (actions[:, None] - 1).astype(np.float32)


class Picked(Connector):
    """Of a nested observation, one part."""

    def connect(self, space):
        return space["pair"]

    def __call__(self, observations, history):
        assert history.observations(1)["odd"][1].shape == (len(history.slots), 2, 2)
        return observations["pair"]


class Identity(Connector):
    def __call__(self, rows, history):
        return rows


class Raises(Identity):
    def __call__(self, rows, history):
        return {}["no such key"]


class Halved(Identity):
    def __call__(self, rows, history):
        return rows[::2]


class Misannounced(Identity):
    def __call__(self, rows, history):
        return rows[:, :1]


class LooksTooFar(Identity):
    def __call__(self, rows, history):
        history.rewards(5)
        return rows


def two_pieces(env):
    assert env.single_observation_space.shape == (2,)
    return [Identity(), Centred()]


def with_module(env, module):
    assert module.action_space == env.single_action_space
    piece = Identity()
    piece.module = module
    return piece


def changes_its_module(module):
    return ThreePushes()


def no_piece():
    return "x"
