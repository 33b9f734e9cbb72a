"""Small environments to learn with and to test against: they need a memory, or have odd actions.

In an experiment file: ``env: StatelessCartPole``.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

VISIBLE = [0, 2]  # position and angle, not the velocities


class StatelessCartPole(gym.ObservationWrapper[Any, Any, Any]):
    """CartPole-v1 without the velocities, which must be inferred from earlier observations.

    Args:
        max_episode_steps: time limit; the episode is truncated there.
        render_mode: gymnasium's.
    """

    def __init__(self, max_episode_steps: int = 500, render_mode: str | None = None) -> None:
        cartpole = gym.make(
            "CartPole-v1",
            max_episode_steps=max_episode_steps,
            render_mode=render_mode,
            disable_env_checker=True,
        )
        super().__init__(cartpole)
        box = cartpole.observation_space
        assert isinstance(box, gym.spaces.Box)
        self.observation_space = gym.spaces.Box(box.low[VISIBLE], box.high[VISIBLE])

    def observation(self, observation: NDArray[np.float32]) -> NDArray[np.float32]:
        """Position and angle."""
        return observation[VISIBLE]


class StretchedPendulum(gym.wrappers.RescaleAction[Any, Any, Any]):
    """Pendulum-v1 with its torque in other units: the action is in [low, high].

    Solved only if actions are scaled to the space's bounds: an untrained policy's actions, around
    0, would all be clipped to the same torque.

    Args:
        low: action for the strongest torque to one side.
        high: action for the strongest torque to the other.
        render_mode: gymnasium's.
    """

    def __init__(
        self, low: float = 300.0, high: float = 500.0, render_mode: str | None = None
    ) -> None:
        pendulum = gym.make("Pendulum-v1", render_mode=render_mode, disable_env_checker=True)
        super().__init__(pendulum, np.float32(low), np.float32(high))


class RepeatAfterMe(gym.Env[np.int64, np.int64]):
    """Shows a random token each step and rewards naming the token of ``delay`` steps before.

    The reward is 1 for the right token and -1 for any other; in the first ``delay`` steps token 0
    is right. Of two tokens, a policy without memory gets 0 on average, a perfect one ``length``.

    Args:
        delay: steps to remember a token; 0 needs no memory.
        length: steps of an episode.
        num_tokens: number of different tokens.
    """

    def __init__(self, delay: int = 1, length: int = 100, num_tokens: int = 2) -> None:
        self.observation_space = gym.spaces.Discrete(num_tokens)
        self.action_space = gym.spaces.Discrete(num_tokens)
        self._delay, self._length = delay, length
        self._shown: list[int] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Show the first token."""
        super().reset(seed=seed)
        self._shown = [0] * self._delay
        return self._show(), {}

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """Judge the token named, show the next one."""
        wanted = self._shown[-1 - self._delay]
        reward = 1.0 if int(action) == wanted else -1.0
        over = len(self._shown) == self._length + self._delay
        return self._show(), reward, over, False, {}

    def _show(self) -> np.int64:
        space = self.observation_space
        assert isinstance(space, gym.spaces.Discrete)
        self._shown.append(int(self.np_random.integers(space.n)))
        return np.int64(self._shown[-1])


class PlayCards(gym.Env[Any, np.int64]):
    """Plays each card of a hand once; the sooner a card is played, the more its value counts.

    The observation shows the values of the remaining cards and, as ``action_mask``, which cards
    remain; playing one that is gone raises. A card's reward is its value, uniform in [0, 1], times
    the fraction of the hand that remained; the best order is from the highest value to the lowest.

    Args:
        num_cards: cards in a hand, and so steps of an episode.
    """

    def __init__(self, num_cards: int = 6) -> None:
        self.observation_space = gym.spaces.Dict(
            action_mask=gym.spaces.MultiBinary(num_cards),
            observation=gym.spaces.Box(0.0, 1.0, (num_cards,), np.float32),
        )
        self.action_space = gym.spaces.Discrete(num_cards)
        self._cards = np.zeros(num_cards, np.float32)
        self._there = np.zeros(num_cards, np.int8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Deal a hand."""
        super().reset(seed=seed)
        self._cards = self.np_random.random(len(self._cards), np.float32)
        self._there = np.ones_like(self._there)
        return self._show(), {}

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Play a card.

        Raises:
            ValueError: the card is gone.
        """
        if not self._there[action]:
            raise ValueError(f"card {action} is gone")
        reward = float(self._cards[action] * self._there.mean())
        self._there[action] = 0
        return self._show(), reward, not self._there.any(), False, {}

    def _show(self) -> dict[str, NDArray[Any]]:
        return {"action_mask": self._there.copy(), "observation": self._cards * self._there}
