"""The action noise of agents: each has a generator of its own for each episode.

So what an agent does follows from the episode's seed, and not from who else plays, in how many
sub-environments, or where fragments were cut.

    S  seats    K  random numbers of an action
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.policies.policy import Policy
from rlrun.sampling.correlated_noise import EpisodeNoise
from rlrun.sampling.seeding import agent_noise

Array = NDArray[Any]

_BLOCK = 64  # steps that are drawn at once


class SeatNoise:
    """Noise for the agents of one policy, by seat."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._episodes: dict[int, EpisodeNoise] = {}
        self._blocks: Array | None = None  # [S, _BLOCK, K]; None until something was drawn

    def begin(self, seat: int, episode_seed: int, agent: int, taken: int = 0) -> None:
        """An agent takes the seat.

        Args:
            agent: its index in the episode.
            taken: actions it has taken already, where a runner is restored.
        """
        self._episodes[seat] = EpisodeNoise(self._policy, agent_noise(episode_seed, agent))
        for _ in range(-(-taken // _BLOCK)):
            self._draw(seat)

    def next(self, seats: Array, taken: Array) -> Array | None:
        """Noise ``[k, K]`` of the next action of these seats; None for policies that use none.

        Args:
            taken: actions that each has taken before, ``[k]``.
        """
        positions = taken % _BLOCK
        for seat in seats[positions == 0].tolist():
            self._draw(seat)
        return None if self._blocks is None else self._blocks[seats, positions]

    def _draw(self, seat: int) -> None:
        drawn = self._episodes[seat].draw(_BLOCK)
        if drawn is None:
            return
        if self._blocks is None or seat >= len(self._blocks):
            grown = np.empty((2 * seat + 16, _BLOCK, *drawn.shape[1:]), drawn.dtype)
            if self._blocks is not None:
                grown[: len(self._blocks)] = self._blocks
            self._blocks = grown
        self._blocks[seat] = drawn
