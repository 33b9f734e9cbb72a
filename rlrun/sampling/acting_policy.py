"""ActingPolicy: a trained policy for environments that its user steps.

Owns what a policy needs besides its weights in order to act: connectors, recurrent states and
views of the steps before, by the same `PolicyActor` that env runners use. Must not know where the
weights are from.

    B  environments that are acted in together
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import Any

import numpy as np
from gymnasium.vector.utils import batch_space, create_empty_array, iterate
from numpy.typing import NDArray

from rlrun.config.schema import EnvRunnersConfig
from rlrun.data.column_data import num_rows, pick
from rlrun.envs.agent_slots import Due, SlotStep
from rlrun.envs.env import observation_problem, stack_observations
from rlrun.envs.episode_vector_env import bad_value_test
from rlrun.policies.privileged import stand_ins
from rlrun.sampling.policy_actor import PolicyActor
from rlrun.sampling.runner_connectors import RunnerConnectors

_STEPS_KEPT = 64  # after which the steps that no view looks at are dropped


class ActingPolicy:
    """Chooses actions from raw observations, as evaluation does; learns nothing.

    Calls from several threads wait for each other; a policy with memory needs one object for each
    session, or one of B environments.

    Args:
        connectors: between the environments and the policy, made for B slots.
        settings: of the env runners.
        explore: sample actions instead of taking the most likely ones; None: as env runners do.
        seed: seed of what exploration draws.

    Attributes:
        num_envs: B.
        observation_space, action_space: of one environment; without privileged entries, which an
            observation may have or not.

    Raises:
        ValueError: B is below 1.
    """

    def __init__(
        self,
        connectors: RunnerConnectors,
        settings: EnvRunnersConfig,
        num_envs: int,
        *,
        explore: bool | None,
        seed: int,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"a policy acts in at least 1 environment, not {num_envs}")
        self.num_envs = num_envs
        explore = connectors.policy.explores if explore is None else explore
        whole, self.action_space = connectors.env_spaces
        self.observation_space = connectors.needed_space
        self._stand_ins = stand_ins(whole, self.observation_space, num_envs)
        self._action_spaces = batch_space(self.action_space, num_envs)
        self._has_bad_values = bad_value_test(self.observation_space)
        self._actor = PolicyActor(
            connectors, settings, num_slots=num_envs, explore=explore, collects=False
        )
        self._rng = np.random.default_rng(seed)
        self._lock = Lock()  # the actor has one current step
        self._begin_fragment()
        self._next_id = num_envs
        self._steps = 0
        self._begins = np.ones(num_envs, np.bool_)  # [B] the next observation is an episode's first

    def reset(self, env_index: int | None = None) -> None:
        """The next observation begins an episode, in one environment or in all."""
        self._begins[slice(None) if env_index is None else env_index] = True

    def compute_single_action(self, observation: Any, reward: float = 0.0) -> Any:
        """The action for the observation of a single environment.

        Args:
            observation: as the environment returns it: the first of an episode after `reset`, else
                the one that the action before has led to.
            reward: of the action before.

        Raises:
            ValueError: the policy acts in several environments, or the observation is of another
                form than the space, or holds NaN, an infinity or an index out of range.
        """
        if self.num_envs != 1:
            raise ValueError(f"the policy acts in {self.num_envs} environments: compute_actions()")
        actions = self.compute_actions([observation], np.array([reward]))
        return next(iter(iterate(self._action_spaces, actions)))

    def compute_actions(self, observations: Any, rewards: Any = None) -> Any:
        """The actions for the observations of all environments.

        Args:
            observations: batched as gymnasium's vector environments do, ``[B, ...]``, or a list.
            rewards: of the actions before, ``[B]``; None: 0.

        Returns:
            The environments' actions, batched.

        Raises:
            ValueError: there are more or fewer observations or rewards than environments, or an
                observation in a list is of another form than the space, or one holds NaN, an
                infinity or an index out of range.
        """
        if isinstance(observations, list):
            observations = self._stack(observations)
        rewards = np.zeros(self.num_envs) if rewards is None else np.asarray(rewards, np.float64)
        for name, count in (("observations", num_rows(observations)), ("rewards", rewards.size)):
            if count != self.num_envs:
                raise ValueError(f"there are {count} {name}, of {self.num_envs} environments")
        if self._stand_ins:  # of what an observation has besides, nothing is looked at
            parts: Any = self.observation_space
            observations = {key: observations[key] for key in parts}
        if self._has_bad_values(observations):
            rows = iterate(batch_space(self.observation_space, self.num_envs), observations)
            raise ValueError(self._problem(rows))
        if self._stand_ins:
            observations |= self._stand_ins
        with self._lock:
            return self._actor.to_env(self._act(observations, rewards))

    def _stack(self, observations: list[Any]) -> Any:
        space = self.observation_space
        empty: Any = create_empty_array(space, len(observations))
        try:
            return stack_observations(space, observations, empty)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise ValueError(self._problem(observations) or str(error)) from None

    def _problem(self, observations: Iterable[Any]) -> str | None:
        """What is wrong with the first observation that is not in the space; None if all are."""
        problems = (observation_problem(self.observation_space, each) for each in observations)
        return next(filter(None, problems), None)

    def _act(self, observations: Any, rewards: NDArray[np.float64]) -> Any:
        actor, begins = self._actor, self._begins
        if self._steps:
            step = SlotStep(
                rewards=rewards,
                terminateds=begins,
                truncateds=np.zeros(self.num_envs, np.bool_),
                observations=observations,
            )
            actor.observe(step)
        if begins.any():
            self._begin(np.flatnonzero(begins), observations)
        if self._steps and self._steps % _STEPS_KEPT == 0:
            actor.discard()
            self._begin_fragment()
        self._steps += 1
        return actor.act(Due())

    def _begin_fragment(self) -> None:
        self._actor.begin_fragment()
        if self._actor.explore:
            self._actor.noise.begin_fragment(self._rng, _STEPS_KEPT, self.num_envs)

    def _begin(self, slots: NDArray[np.int64], observations: Any) -> None:
        ids = self._next_id + np.arange(len(slots))
        self._next_id += len(slots)
        self._actor.begin_episodes(slots, ids, pick(observations, slots), update=False)
        self._actor.begin_noise(slots, ids)
        self._begins = np.zeros(self.num_envs, np.bool_)
