"""Action noise that lasts: what pushes in one step goes on pushing in the next ones.

Independent noise cancels out over a few steps, and where only a long push in one direction leads
anywhere it never gets there. A policy with a `noise_correlation` rho is given, in place of its
independent numbers z ~ N(0, 1), those of a first-order autoregressive process:

    x_0 = z_0        x_t = rho x_{t-1} + sqrt(1 - rho^2) z_t

Every x_t is N(0, 1) again, and x_t and x_{t+k} correlate by rho^k (Korenkevych et al. 2019,
"Autoregressive Policies for Continuous Control Deep Reinforcement Learning", with order 1; compare
the Ornstein-Uhlenbeck noise of Lillicrap et al. 2016, and Eberhard et al. 2023, "Pink Noise Is All
You Need"). Each episode, and each agent in it, begins with a z of its own: so its noise does not
depend on the episode that happened to be played before.

    B  lanes of a runner    K  random numbers of an action
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.policies.policy import Policy
from rlrun.sampling.seeding import FragmentNoise

Array = NDArray[Any]


def next_noise(last: Array, fresh: Array, correlation: float) -> Array:
    """x_t from x_{t-1} and z_t, all of one shape."""
    return correlation * last + math.sqrt(1.0 - correlation**2) * fresh


class LaneNoise:
    """The noise of a runner's lanes, over fragments' ends.

    Args:
        correlation: rho.
        steps: how many steps the lanes' episodes have taken after t rows of the running fragment,
            ``[B]``.
    """

    def __init__(self, correlation: float, steps: Callable[[int], Array]) -> None:
        self._correlation, self._steps = correlation, steps
        self._fragment: FragmentNoise | None = None
        self._last: Array | None = None  # [B, K], of the step before; None before the first one

    def over(self, fragment: FragmentNoise) -> LaneNoise:
        """This noise, made of the independent noise of the fragment that begins now."""
        self._fragment = fragment
        return self

    def row(self, t: int) -> Array | None:
        """Step t's noise, ``[B, K]``; to be asked for once, step by step."""
        assert self._fragment is not None
        noise = self._fragment.row(t)
        if noise is None:
            return None
        if self._last is not None:
            goes_on = self._steps(t)[:, None] > 0
            noise = np.where(goes_on, next_noise(self._last, noise, self._correlation), noise)
        self._last = noise.copy()  # the policy may overwrite what it is given
        return noise

    def get_state(self) -> Array | None:
        """The last step's noise, ``[B, K]``."""
        return None if self._last is None else self._last.copy()

    def set_state(self, state: Array | None) -> None:
        """Take over what `get_state` returned."""
        self._last = None if state is None else np.array(state)


class EpisodeNoise:
    """The noise of one agent in one episode, drawn in blocks.

    Args:
        rng: of this agent in this episode.
    """

    def __init__(self, policy: Policy, rng: np.random.Generator) -> None:
        self._policy, self._rng = policy, rng
        self._last: Array | None = None  # [1, K]

    def draw(self, length: int) -> Array | None:
        """The next steps' noise, ``[length, K]``; None for a policy that uses none."""
        noise = self._policy.draw_noise(self._rng, length, 1)
        if noise is None:
            return None
        if self._policy.noise_correlation:
            for t, fresh in enumerate(noise):
                if self._last is not None:
                    noise[t] = next_noise(self._last, fresh, self._policy.noise_correlation)
                self._last = noise[t]
        return noise[:, 0]
