"""Small environments with several agents, to learn with and to test against.

In an experiment file: ``env: RockPaperScissors``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.data.column_data import Array
from rlrun.envs.horizon import ALL
from rlrun.envs.multi_agent_env import Dicts, FirstDicts, MultiAgentEnv, make_multi_agent
from rlrun.policies.policy import Policy
from rlrun.policies.policy_mapping import EpisodeStart

ROCK, PAPER, SCISSORS = 0, 1, 2
_NOTHING_YET = 3  # what is seen before the first round
_PAYOFF = 1.0

MultiAgentCartPole = make_multi_agent("CartPole-v1")
"""CartPole-v1 for each of ``num_agents`` agents; an agent leaves when its pole has fallen."""


class RockPaperScissors(MultiAgentEnv):
    """Two players show a hand at once, ``rounds`` times; each sees what the other showed last.

    The winner of a round gets 1, the loser -1. A player that knows the other's rule wins every
    round but those in which it cannot know.

    Args:
        rounds: rounds of an episode.
    """

    possible_agents = ("player_0", "player_1")

    def __init__(self, rounds: int = 10) -> None:
        self.observation_spaces = {name: gym.spaces.Discrete(4) for name in self.possible_agents}
        self.action_spaces = {name: gym.spaces.Discrete(3) for name in self.possible_agents}
        self._rounds, self._played = rounds, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> FirstDicts:
        self._played = 0
        return dict.fromkeys(self.possible_agents, _NOTHING_YET), {}

    def step(self, actions: dict[Any, Any]) -> Dicts:
        first, second = (int(actions[name]) for name in self.possible_agents)
        won = (0.0, _PAYOFF, -_PAYOFF)[(first - second) % 3]
        self._played += 1
        over = self._played == self._rounds
        return (
            {"player_0": second, "player_1": first},
            {"player_0": won, "player_1": -won},
            {ALL: over},
            {ALL: False},
            {},
        )


class AlwaysSame(Policy):
    """Shows ``config["hand"]`` in all episodes, rock by default."""

    def compute_actions(self, obs_batch: Array, state_batches: Any = None, **_: Any) -> Any:
        hand = int(self.config.get("hand", ROCK))
        return np.full(len(obs_batch), hand, np.int64), [], {}


class BeatLast(Policy):
    """Shows what would have beaten the other one's last hand; rock at first."""

    def compute_actions(self, obs_batch: Array, state_batches: Any = None, **_: Any) -> Any:
        seen = obs_batch.argmax(axis=1)  # one-hot, as the preprocessor makes them
        return np.where(seen == _NOTHING_YET, ROCK, (seen + 1) % 3), [], {}


class TakeTurns(MultiAgentEnv):
    """Players take turns adding 1, 2 or 3 to a number; the one that reaches ``goal`` wins.

    Only the player whose turn it is has an observation, so rewards come while players are silent.
    With two players the first can always win unless ``goal`` is divisible by 4.

    Args:
        num_players: number of players.
        goal: the number to reach.
    """

    def __init__(self, num_players: int = 2, goal: int = 10) -> None:
        self.possible_agents = [f"player_{i}" for i in range(num_players)]
        space = gym.spaces.Discrete(goal)
        self.observation_spaces = dict.fromkeys(self.possible_agents, space)
        self.action_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Discrete(3))
        self._goal, self._number, self._turn = goal, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> FirstDicts:
        self._number = self._turn = 0
        return {self.possible_agents[0]: 0}, {}

    def step(self, actions: dict[Any, Any]) -> Dicts:
        player = self.possible_agents[self._turn]
        self._number += 1 + int(actions[player])
        over = self._number >= self._goal
        self._turn = (self._turn + 1) % len(self.possible_agents)
        rewards: dict[Any, float] = {}
        observations: dict[Any, Any] = {}
        if over:
            lost = -1.0 / (len(self.possible_agents) - 1)
            rewards = {name: 1.0 if name == player else lost for name in self.possible_agents}
        else:
            observations = {self.possible_agents[self._turn]: self._number}
        return observations, rewards, {ALL: over}, {ALL: False}, {}


class _Around(MultiAgentEnv):
    """An environment around another one; does what that does."""

    def __init__(self, env: MultiAgentEnv) -> None:
        self._env = env
        self.possible_agents = env.possible_agents
        self.observation_spaces: Mapping[Any, gym.Space[Any]] = env.observation_spaces
        self.action_spaces: Mapping[Any, gym.Space[Any]] = env.action_spaces

    def reset(self, *, seed: int | None = None, options: Any = None) -> FirstDicts:
        return self._env.reset(seed=seed, options=options)

    def step(self, actions: dict[Any, Any]) -> Dicts:
        return self._env.step(actions)

    def close(self) -> None:
        self._env.close()


class CrashingCartPole(_Around):
    """MultiAgentCartPole that raises in some of its steps, which follow from the episode's seed.

    Args:
        num_agents: see `MultiAgentCartPole`.
        crash_probability: probability of raising, in each step.
    """

    def __init__(self, num_agents: int = 2, crash_probability: float = 0.01) -> None:
        super().__init__(MultiAgentCartPole(num_agents=num_agents))
        self._probability = crash_probability
        self._rng = np.random.default_rng(0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> FirstDicts:
        self._rng = np.random.default_rng(seed)
        return super().reset(seed=seed, options=options)

    def step(self, actions: dict[Any, Any]) -> Dicts:
        if self._rng.random() < self._probability:
            raise RuntimeError("the cart went off the rails")
        return super().step(actions)


class SlowCartPole(_Around):
    """MultiAgentCartPole that takes its time.

    Args:
        num_agents: see `MultiAgentCartPole`.
        step_s: seconds that a step takes longer.
    """

    def __init__(self, num_agents: int = 2, step_s: float = 0.001) -> None:
        super().__init__(MultiAgentCartPole(num_agents=num_agents))
        self._step_s = step_s

    def step(self, actions: dict[Any, Any]) -> Dicts:
        time.sleep(self._step_s)
        return super().step(actions)


def learner_against_heuristics(agent: str, episode: EpisodeStart) -> str:
    """Player 0 is ``learner``; player 1 one of the other policies, drawn for each episode."""
    if agent == "player_0":
        return "learner"
    others = [policy for policy in episode.policies if policy != "learner"]
    return others[int(episode.rng.integers(len(others)))]
