"""ActionNoise: the random numbers that a policy's exploring actions are made of, slot by slot.

They are drawn in blocks, from one of two sources: a generator of the fragment, for all slots that
act together, or a generator of each episode, so that an episode depends neither on fragments nor on
other slots. Either way a policy with a `noise_correlation` rho is given, in place of independent
numbers z ~ N(0, 1), numbers x of a first-order autoregressive process:

    x_0 = z_0        x_t = rho x_{t-1} + sqrt(1 - rho^2) z_t

Every x_t is N(0, 1) again, and x_t and x_{t+k} correlate by rho^k (Korenkevych et al. 2019,
"Autoregressive Policies for Continuous Control Deep Reinforcement Learning", with order 1; compare
the Ornstein-Uhlenbeck noise of Lillicrap et al. 2016, and Eberhard et al. 2023, "Pink Noise Is All
You Need"). Independent noise cancels out over a few steps; this noise can push for long enough to
get somewhere. Each episode of each slot begins with a z of its own. A policy with `noise_steps` n
is given the same z in n steps of an episode.

    S  slots    k  slots that act    K  random numbers of an action
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlrun.data.column_data import Array
from rlrun.policies.action_sampling import SamplingPolicy
from rlrun.policies.parameter_noise import ParameterNoise
from rlrun.policies.policy import Policy

_BLOCK = 64  # steps that are drawn at once for an episode


class ActionNoise:
    """Noise for the slots of one policy; None throughout if the policy draws none.

    Args:
        collects: whether its actions are collected; others are of the policy's own weights.

    Attributes:
        parameters: noise in the weights that act, if the policy has such.
    """

    def __init__(self, policy: Policy, *, collects: bool = False) -> None:
        self._policy = policy
        self.parameters: ParameterNoise | None = None
        if collects and isinstance(policy, SamplingPolicy) and policy.weight_stddev is not None:
            self.parameters = ParameterNoise(policy, policy.weight_stddev)
        self._fragment: tuple[np.random.Generator, int, int] | None = None
        self._rows: Array | None = None  # [T, S, K] of the fragment
        self._row = 0
        self._episodes: dict[int, np.random.Generator] = {}  # by slot
        self._blocks: Array | None = None  # [S, _BLOCK, K] of the episodes
        self._position = np.empty(0, np.int64)  # [S] in the blocks, of the next actions
        self._num_left = _BLOCK  # actions until a block may be used up
        self._age = np.empty(0, np.int64)  # [S] actions of the episode that had lasting noise
        self._all = np.empty(0, np.int64)  # [S]
        self._last: Array | None = None  # [S, K] lasting noise of the last action

    def resize(self, slots: int) -> None:
        """Make room for this many slots, more than before."""
        more, self._all = slots - len(self._age), np.arange(slots)
        self._position = np.append(self._position, np.zeros(more, np.int64))
        self._age = np.append(self._age, np.zeros(more, np.int64))
        if self._last is not None:
            added = np.zeros((more, *self._last.shape[1:]), self._last.dtype)
            self._last = np.append(self._last, added, axis=0)

    def begin_fragment(self, rng: np.random.Generator, length: int, slots: int | None) -> None:
        """Draw from ``rng`` what exploration takes in a fragment of ``length`` steps.

        Where all slots act together their noise is drawn; as many rows are drawn again if the
        fragment becomes longer.

        Args:
            slots: None where they come and go: each has noise of its own, so that agents do not
                depend on fragments.
        """
        if self._policy.draws_for_fragments:
            self._policy.begin_fragment(rng)
        if self.parameters is not None:
            self.parameters.begin_fragment(rng)
        if slots is not None:
            self._draw_rows(rng, length, slots)

    def _draw_rows(self, rng: np.random.Generator, length: int, slots: int) -> None:
        self._fragment = rng, length, slots
        self._rows, self._row = self._policy.draw_noise(rng, length, slots), 0

    def begin_episodes(self, slots: Array | int) -> None:
        """Episodes begin in these slots, int ``[k]``; the fragment's generator goes on."""
        self._age[slots] = 0

    def begin_episode(self, slot: int, rng: np.random.Generator, taken: int = 0) -> None:
        """An episode begins whose noise comes from ``rng``.

        Args:
            taken: actions that it has had already, where a runner is restored.
        """
        num_blocks, position = divmod(taken, _BLOCK)
        self._episodes[slot], self._position[slot] = rng, position
        self._age[slot] = taken
        self._num_left = min(self._num_left, _BLOCK - position)
        for _ in range(num_blocks + 1):
            self._draw(slot)

    def next(self, slots: Array | None = None) -> Array | None:
        """Noise ``[k, K]`` of the next action of these slots.

        Args:
            slots: int ``[k]``; None for all slots.
        """
        if self._fragment is None:
            slots = self._all if slots is None else slots
            positions = self._position[slots]
            noise = None if self._blocks is None else self._blocks[slots, positions]
            self._position[slots] = positions + 1
            self._num_left -= 1
            if not self._num_left:
                self._draw_again()
        else:
            if self._rows is None:
                return None
            if self._row == len(self._rows):
                self._draw_rows(*self._fragment)
            noise = self._rows[self._row]
            self._row += 1
        policy = self._policy
        if noise is None or (not policy.noise_correlation and policy.noise_steps == 1):
            return noise
        return self._lasting(noise, slice(None) if slots is None else slots)

    def _draw_again(self) -> None:
        """Renew blocks that are used up."""
        for slot in np.flatnonzero(self._position == _BLOCK).tolist():
            self._draw(slot)
            self._position[slot] = 0
        self._num_left = _BLOCK - int(self._position.max())

    def _draw(self, slot: int) -> None:
        drawn = self._policy.draw_noise(self._episodes[slot], _BLOCK, 1)
        if drawn is None:
            return
        if self._blocks is None or slot >= len(self._blocks):
            grown = np.empty((len(self._age), _BLOCK, *drawn.shape[2:]), drawn.dtype)
            if self._blocks is not None:
                grown[: len(self._blocks)] = self._blocks
            self._blocks = grown
        self._blocks[slot] = drawn[:, 0]

    def _lasting(self, fresh: Array, slots: Any) -> Array:
        if self._last is None:
            self._last = np.zeros((len(self._age), *fresh.shape[1:]), fresh.dtype)
        noise, age = self._last[slots], self._age[slots]
        rho, steps = self._policy.noise_correlation, self._policy.noise_steps
        begins = age == 0
        if rho:
            noise = rho * noise + math.sqrt(1.0 - rho**2) * fresh
        elif steps is not None:
            begins = age % steps == 0
        noise = np.where(begins[:, None], fresh, noise)
        self._last[slots], self._age[slots] = noise, age + 1
        return noise  # the policy may overwrite it: `_last` is a copy

    def get_state(self, slots: Any = slice(None)) -> dict[str, Any]:
        """What lasts of the noise of these slots."""
        last = None if self._last is None else self._last[slots].copy()
        parameters = {} if self.parameters is None else self.parameters.get_state()
        return {"age": self._age[slots].copy(), "last": last, "parameters": parameters}

    def set_state(self, state: Mapping[str, Any], slots: Any = slice(None)) -> None:
        """Restore a state from `get_state`, for the same agents, now in these slots."""
        # Older checkpoints tell whether the next action is an episode's first.
        self._age[slots] = state["age"] if "age" in state else ~np.asarray(state["first"])
        if self.parameters is not None and (noise := state.get("parameters")):
            self.parameters.set_state(noise)
        if state["last"] is not None:
            last = np.asarray(state["last"])
            if self._last is None:
                self._last = np.zeros((len(self._age), *last.shape[1:]), last.dtype)
            self._last[slots] = last
