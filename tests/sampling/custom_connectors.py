"""Connectors as a user would write them; imported by import path."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

from rlrun import Connector
from rlrun.connectors.filters import RunningStat


class Recent(Connector):
    """Puts the last k rewards, actions and observations' last numbers, and the step, behind."""

    def __init__(self, k=2):
        self.k = k

    def connect(self, space):
        width = int(np.prod(space.shape, dtype=int))  # 1 for Discrete
        return gym.spaces.Box(-np.inf, np.inf, (width + 3 * self.k + 1,), np.float32)

    def __call__(self, observations, history):
        n = len(observations)
        earlier = history.observations(self.k).reshape(n, self.k + 1, -1)[:, :-1, -1]
        looked = [history.rewards(self.k), history.actions(self.k), earlier]
        parts = [observations.reshape(n, -1), *looked, history.steps[:, None]]
        return np.concatenate(parts, axis=1).astype(np.float32)


class Placed(Connector):
    """Puts the number of the slot behind."""

    def connect(self, space):
        return gym.spaces.Box(-np.inf, np.inf, (space.shape[0] + 1,), np.float32)

    def __call__(self, observations, history):
        return np.append(observations, history.slots[:, None], axis=1).astype(np.float32)


class Centred(Connector):
    """Subtracts the mean of all observations so far."""

    def connect(self, space):
        self.stat, self.deltas = RunningStat(space.shape), RunningStat(space.shape)
        return space

    def __call__(self, observations, history):
        if history.update:
            self.stat.update(observations)
            self.deltas.update(observations)
        return (observations - self.stat.mean).astype(np.float32)

    def get_state(self):
        return {"stat": self.stat.get_state(), "deltas": self.deltas.get_state()}

    def set_state(self, state):
        self.stat.set_state(state["stat"])
        self.deltas.set_state(state["deltas"])

    def flush_deltas(self):
        deltas, self.deltas = self.deltas.get_state(), RunningStat(self.deltas.mean.shape)
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
        slots = history.slots
        repeated = (self.rng.random(len(actions)) < self.p) & (history.steps > 0)
        self.sent[slots] = np.where(repeated, self.sent[slots], actions)
        return self.sent[slots]

    def get_state(self):
        return {"sent": self.sent.copy(), "rng": self.rng.bit_generator.state}

    def set_state(self, state):
        self.sent = np.array(state["sent"])
        self.rng.bit_generator.state = state["rng"]


class Blurred(Connector):
    """Adds random numbers of its own."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def __call__(self, observations, history):
        return (observations + self.rng.normal(size=observations.shape)).astype(np.float32)

    def get_state(self):
        return {"rng": self.rng.bit_generator.state}

    def set_state(self, state):
        self.rng.bit_generator.state = state["rng"]


class Counted(Connector):
    """Counts the actions that pass."""

    count = new = 0

    def __call__(self, actions, history):
        self.new += len(actions)
        return actions

    def get_state(self):
        return {"count": self.count}

    def set_state(self, state):
        self.count = state["count"]

    def flush_deltas(self):
        delta, self.new = {"count": self.new}, 0
        return delta

    def apply_deltas(self, deltas):
        self.count += sum(delta["count"] for delta in deltas)


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
    at = "rewards"

    def __call__(self, rows, history):
        getattr(history, self.at)(5)
        return rows


class LooksTooFarAtObservations(LooksTooFar):
    at = "observations"


def two_connectors(env):
    assert env.single_observation_space.shape == (2,)
    return [Identity(), Centred()]


def with_module(env, module):
    assert module.action_space == env.single_action_space
    with_module.seen(module)
    return Identity()


def changes_its_module(module):
    return ThreePushes()


def no_connector():
    return "x"


ALL_KINDS = {  # look back, learn, draw and remember
    "env_to_module_connector": (
        {"use": "custom_connectors:Recent", "k": 2},
        {"use": "custom_connectors:Centred"},
    ),
    "module_to_env_connector": ({"use": "custom_connectors:Sticky", "p": 0.4},),
    "episode_lookback_horizon": 2,
    "observation_filter": "MeanStdFilter",
}
