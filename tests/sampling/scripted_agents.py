"""A multi-agent environment that follows a script, and policies whose actions say what they saw."""

from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.envs.multi_agent_env import MultiAgentEnv
from rlrun.policies.policy import Policy

BOX = gym.spaces.Box(-1e6, 1e6, (1,), np.float32)

# Observations are numbers: 100 for each agent before, plus the time. Agent b is silent at first,
# c joins at t=3, b dies at t=5, a and c are silent for a while, and get rewards meanwhile.
SCRIPT: list[dict[str, dict[str, Any]]] = [
    {"obs": {"a": 0, "b": 100}},
    {"obs": {"a": 1}, "rewards": {"a": 1, "b": 10, "c": 5}},
    {"obs": {"a": 2}, "rewards": {"a": 1, "b": 20}},
    {"obs": {"a": 3, "b": 103, "c": 203}, "rewards": {"a": 1, "b": 30, "c": 7}},
    {"obs": {"b": 104, "c": 204}, "rewards": {"a": 2, "b": 1, "c": 1}},
    {
        "obs": {"a": 5, "b": 105, "c": 205},
        "rewards": {"a": 3, "b": 1, "c": 1},
        "terminateds": {"b": True},
    },
    {"obs": {"a": 6}, "rewards": {"a": 1, "c": 4}},
    {"obs": {}, "rewards": {"a": 1, "c": 8}, "truncateds": {"__all__": True}},
]
EXPECTED = {  # agent -> (obs, new_obs, reward, t, terminated, truncated), written by hand
    "a": [
        (0, 1, 1, 0, False, False),
        (1, 2, 1, 1, False, False),
        (2, 3, 1, 2, False, False),
        (3, 5, 5, 4, False, False),
        (5, 6, 1, 5, False, False),
        (6, 6, 1, 6, False, True),
    ],
    "b": [
        (100, 103, 60, 2, False, False),
        (103, 104, 1, 3, False, False),
        (104, 105, 1, 4, True, False),
    ],
    "c": [
        (203, 204, 1, 3, False, False),
        (204, 205, 1, 4, False, False),
        (205, 205, 12, 6, False, True),
    ],
}
LENGTH = len(SCRIPT) - 1
TOTALS = {"a": 10.0, "b": 62.0, "c": 14.0}


class Scripted(MultiAgentEnv):
    """Follows SCRIPT again and again; asserts that exactly the agents that are due act."""

    possible_agents = ("a", "b", "c")

    def __init__(self, script: str = "SCRIPT") -> None:
        self.observation_spaces = dict.fromkeys(self.possible_agents, BOX)
        self.action_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Discrete(1000))
        self._script = globals()[script]
        self._time = 0

    def _seen(self) -> dict[str, Any]:
        part = self._script[self._time]
        return {a: np.array([x], np.float32) for a, x in part["obs"].items()}

    def reset(self, *, seed=None, options=None):
        self._time = 0
        return self._seen(), {}

    def step(self, actions):
        before, flags = self._script[self._time], self._script[self._time].get("terminateds", {})
        assert actions == {a: x for a, x in before["obs"].items() if not flags.get(a)}
        self._time += 1
        part = self._script[self._time]
        flags = part.get("terminateds", {}), part.get("truncateds", {})
        return self._seen(), part["rewards"], *flags, part.get("infos", {})


class Echo(Policy):
    """Its action is the number that it sees."""

    def compute_actions(self, obs_batch, state_batches=None, *, explore=True, noise=None):
        self.calls = getattr(self, "calls", 0) + 1
        return obs_batch[:, 0].astype(np.int64), [], {}


REWARD_OF_THE_DEAD = [
    {"obs": {"a": 0, "b": 100}},
    {"obs": {"a": 1, "b": 101}, "rewards": {}, "terminateds": {"b": True}},
    {"obs": {"a": 2}, "rewards": {"b": 3.0}},
]
RETURN_OF_THE_DEAD = [
    {"obs": {"a": 0, "b": 100}},
    {"obs": {"a": 1, "b": 101}, "rewards": {}, "terminateds": {"b": True}},
    {"obs": {"a": 2, "b": 102}, "rewards": {}},
]
NOT_A_NUMBER = [
    {"obs": {"a": 0}},
    {"obs": {"a": 1}, "rewards": {}},
    {"obs": {"a": float("nan")}, "rewards": {}},
]
INFINITE_REWARD = [{"obs": {"a": 0}}, {"obs": {"a": 1}, "rewards": {"a": float("inf")}}]
NO_AGENT = [{"obs": {}}, {"obs": {}, "rewards": {}, "terminateds": {"__all__": True}}]
STRANGER = [{"obs": {"a": 0}}, {"obs": {"z": 1}, "rewards": {}}]
NO_DICT = [{"obs": {"a": 0}}, {"obs": {"a": 1}, "rewards": {}, "terminateds": True}]
NO_REWARD = [{"obs": {"a": 0}}, {"obs": {"a": 1}, "rewards": {"a": None}}]
TEXT_FOR_REWARD = [{"obs": {"a": 0}}, {"obs": {"a": 1}, "rewards": {"a": "1"}}]
NUMBERS_OF_ONE = [
    {"obs": {"a": 0, "b": 0}},
    {"obs": {}, "rewards": {}, "terminateds": {"__all__": True}, "infos": {"a": {"x": 2.0}}},
]
NO_INFOS = [
    {"obs": {"a": 0}},
    {"obs": {"a": 1}, "rewards": {}, "terminateds": {"a": True}, "infos": None},
]
# As float16 these have the sum 2048.
HALF_PRECISION = [
    {"obs": {"a": 0, "b": 0}},
    {"obs": {"b": 1}, "rewards": dict.fromkeys("ab", np.float16(2048))},
    {"obs": {"b": 2}, "rewards": dict.fromkeys("ab", np.float16(1))},
    {
        "obs": {},
        "rewards": dict.fromkeys("ab", np.float16(1)),
        "terminateds": {"__all__": True},
    },
]
