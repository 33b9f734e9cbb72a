"""ExplorationStrategy: a way to explore of the user's own, as `exploration.type` names it.

Owns its interface, and the policy that acts by it. Everything that it remembers from step to step
is a view of what the policy has put out, so it is in checkpoints. Must not import torch.

    N  rows    K  random numbers for one action    P  distribution inputs or action values
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from rlrun.config.registry import import_object
from rlrun.config.schema import ExplorationConfig
from rlrun.config.section import UseSpec
from rlrun.data import columns as col
from rlrun.data.column_data import Array
from rlrun.data.view_requirement import ViewRequirement
from rlrun.policies.action_sampling import SamplingPolicy
from rlrun.policies.policy import Policy

SCHEDULES = ("epsilon", "temperature", "scale")
"""Settings in section `exploration` that may change during a run."""
_BEFORE = "_before"  # name of the view of what was remembered in the step before


class ExplorationStrategy(ABC):
    """Chooses exploring actions, given the best ones.

    Attributes:
        settings: present values of `schedules`.
    """

    schedules: ClassVar[tuple[str, ...]] = ()
    """Which of `epsilon`, `temperature` and `scale` in section `exploration` it uses."""
    memory: Mapping[str, gym.Space[Any]] = {}
    """What it remembers of each environment from step to step: name -> space of the value. All
    values are zero at the start of an episode. Batches get a column of each name."""

    def __init__(self, action_space: gym.Space[Any]) -> None:
        self.action_space = action_space
        self.settings: Mapping[str, float] = {}

    @abstractmethod
    def draw(self, rng: np.random.Generator, length: int, slots: int) -> Array:
        """All random numbers of a fragment, ``[length, slots, K]``."""

    @abstractmethod
    def explore(
        self, best: Array, inputs: Array, noise: Array, memory: Mapping[str, Array]
    ) -> tuple[Array, Mapping[str, Array]]:
        """Exploring actions, and what to remember for the next step.

        Args:
            best: the best actions, ``[N, ...]``: from 0 if Discrete, in [-1, 1] for a bounded Box.
            inputs: DQN's action values ``[N, n]``, -1e9 where a mask forbids the action; SAC's
                inputs of the distribution ``[N, P]``.
            noise: of this step, ``[N, K]``.
            memory: what was remembered in the step before, ``[N, ...]`` each.
        """


class ExploringPolicy(Policy):
    """Acts like another policy, or by an exploration strategy where it explores.

    Attributes:
        inner: the other policy, which also draws the random actions at the start of a run.
    """

    def __init__(self, inner: SamplingPolicy, strategy: ExplorationStrategy) -> None:
        super().__init__(inner.observation_space, inner.action_space)
        self.inner, self._strategy = inner, strategy
        self._random = False
        self._num_inner = inner.sampler.num_noise
        self.draws_for_fragments = inner.draws_for_fragments
        self.unread_views = inner.unread_views
        self.view_requirements = dict(inner.view_requirements)
        for name, space in strategy.memory.items():
            before = ViewRequirement(name, shift=-1, space=space, used_for_training=False)
            self.view_requirements[name + _BEFORE] = before

    def set_exploration(self, settings: Mapping[str, float]) -> None:
        self._strategy.settings = settings
        self._random = bool(settings.get("random"))
        self.inner.set_exploration(dict.fromkeys(("epsilon", "random"), float(self._random)))

    def draw_noise(self, rng: np.random.Generator, length: int, slots: int) -> Array:
        own = self._strategy.draw(rng, length, slots)
        return np.concatenate([self.inner.draw_noise(rng, length, slots), own], axis=-1)

    def compute_actions_from_input_dict(
        self,
        input_dict: Mapping[str, Array],
        *,
        explore: bool | None = None,
        noise: Array | None = None,
    ) -> tuple[Array, list[Array], dict[str, Array]]:
        explore = self.explores if explore is None else explore
        views = dict(input_dict)
        memory = {name: views.pop(name + _BEFORE) for name in self._strategy.memory}
        if explore and noise is None:
            noise = self.draw_noise(np.random.default_rng(), 1, len(views[col.OBS]))[0]
        actions, states, extra = self.inner.compute_actions_from_input_dict(
            views,
            explore=explore and self._random,
            noise=None if noise is None else noise[:, : self._num_inner],
        )
        if explore and not self._random:
            assert noise is not None
            inputs, own = extra[col.ACTION_DIST_INPUTS], noise[:, self._num_inner :]
            chosen, after = self._strategy.explore(actions, inputs, own, memory)
            actions, memory = np.asarray(chosen, actions.dtype), dict(after)
        return actions, states, {**extra, **memory}

    def begin_fragment(self, rng: np.random.Generator) -> None:
        self.inner.begin_fragment(rng)

    def get_initial_state(self) -> list[Array]:
        return self.inner.get_initial_state()

    def get_weights(self) -> Any:
        return self.inner.get_weights()

    def set_weights(self, weights: Any) -> None:
        self.inner.set_weights(weights)


def exploring(policy: SamplingPolicy, settings: ExplorationConfig) -> Policy:
    """The policy, exploring by the strategy that `exploration.type` names if it names one."""
    if not isinstance(settings.type, UseSpec):
        return policy
    make = import_object(settings.type.use)
    return ExploringPolicy(policy, make(policy.action_space, **settings.type.arguments()))


def unexploring(policy: Policy) -> Policy:
    """The policy without its strategy."""
    return policy.inner if isinstance(policy, ExploringPolicy) else policy
