"""Policy: maps observations to actions in an env runner. Knows nothing of torch, Ray or YAML.

rlrun's own are `MLPPolicy` (in numpy) and `TorchPolicy` (any `RLModule`), each with a network and a
sampler.

    B  rows of a batch: one for each slot that needs an action
    P  inputs of the action distribution of one row
    K  random numbers for one action
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.data import columns as col
from rlrun.data.column_data import Array
from rlrun.data.view_requirement import ViewRequirement


class Policy:
    """Chooses actions in an env runner, which owns the environments.

    Only `compute_actions`, or `compute_actions_from_input_dict`, must be defined; a policy without
    weights keeps the other defaults.

    Attributes:
        view_requirements: views that the policy acts on and learns from, by name. May be edited at
            any time; changes apply from the next fragment on.
        unread_views: views that the policy does not read when it acts; they are not gathered then.
        explores: whether actions are sampled if the caller leaves that to the policy; an env runner
            sets it to `env_runners.explore`.
        draws_for_fragments: whether `begin_fragment` does something.
        noise_correlation: correlation of the noise of successive steps, in [0, 1); 0 during the
            random steps of a run. If it is ever used, it must be set from the start and
            `draw_noise` must return standard normal numbers, from which `sampling.action_noise`
            makes an autoregressive process.
        noise_steps: steps of an episode that are given the same noise; None: all of them.
    """

    view_requirements: dict[str, ViewRequirement]
    unread_views: frozenset[str] = frozenset()
    explores = True
    draws_for_fragments = False
    noise_correlation = 0.0
    noise_steps: int | None = 1

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.config = dict(config or {})
        self.view_requirements = {col.OBS: ViewRequirement(space=observation_space)}

    def compute_actions(
        self,
        obs_batch: Array,
        state_batches: Sequence[Array] | None = None,
        *,
        explore: bool | None = None,
        noise: Array | None = None,
    ) -> tuple[Array, list[Array], dict[str, Array]]:
        """Choose one action per row.

        Args:
            obs_batch: preprocessed observations, ``[B, ...]``.
            state_batches: recurrent states, each ``[B, ...]``; empty for feed-forward policies.
            explore: sample (True) or take the most likely action (False); None is `explores`.
            noise: ``[B, K]``, one step of what `draw_noise` returned, correlated if
                `noise_correlation` says so; None draws new numbers.

        Returns:
            Actions ``[B, ...]``, in [-1, 1] for bounded Boxes and from 0 for discrete spaces; the
            new states; and extra values that become batch columns.
        """
        if type(self).compute_actions_from_input_dict is Policy.compute_actions_from_input_dict:
            raise TypeError(f"{type(self).__name__} must define compute_actions()")
        views = {f"{col.STATE_IN_PREFIX}{k}": s for k, s in enumerate(state_batches or ())}
        views[col.OBS] = obs_batch
        return self.compute_actions_from_input_dict(views, explore=explore, noise=noise)

    def compute_actions_from_input_dict(
        self,
        input_dict: Mapping[str, Array],
        *,
        explore: bool | None = None,
        noise: Array | None = None,
    ) -> tuple[Array, list[Array], dict[str, Array]]:
        """Choose one action per row, given all views that the policy acts on.

        By default calls `compute_actions` with observations and states (``state_in_k``); a policy
        with other views overrides it.

        Args:
            input_dict: name of the view -> ``[B, ...]``, or ``[B, n, ...]`` with a time axis.
        """
        states = [input_dict[name] for name in state_names(input_dict)]
        return self.compute_actions(input_dict[col.OBS], states, explore=explore, noise=noise)

    def draw_noise(self, rng: np.random.Generator, length: int, slots: int) -> Array | None:
        """All random numbers of a fragment, ``[length, slots, K]``; None if there are none."""
        return None

    def begin_fragment(self, rng: np.random.Generator) -> None:
        """Draw what stays the same for a whole fragment, such as the noise of noisy weights."""

    def set_exploration(self, settings: Mapping[str, float]) -> None:
        """Set how far exploring actions deviate from the best ones, by name."""

    def fragment_columns(
        self, columns: Mapping[str, Array], *, explore: bool = True
    ) -> dict[str, Array]:
        """Further columns of a finished fragment, computed once for all rows.

        Args:
            columns: actions and extra values from `compute_actions`, each ``[N, ...]``.
            explore: how the actions were chosen.
        """
        return {}

    def postprocess_trajectory(
        self, batch: Any, other_agent_batches: Mapping[Any, Any] | None = None, episode: Any = None
    ) -> Any:
        """Edit one agent's chunk of one episode before it enters the train batch.

        Args:
            other_agent_batches: for the other agents of the episode, agent -> policy id, policy and
                chunk; rows correspond by ``t``.
            episode: the episode's id, the `eps_id` of the rows.
        """
        return batch

    def learn_on_batch(self, batch: Any) -> dict[str, Any]:
        """Improve the policy with ``batch`` and return statistics."""
        return {}

    def compute_gradients(self, batch: Any) -> tuple[Any, dict[str, Any]]:
        """Gradients of the policy's loss on a batch, for `apply_gradients`; and statistics."""
        raise TypeError(f"{type(self).__name__} defines no compute_gradients()")

    def apply_gradients(self, gradients: Any) -> dict[str, Any]:
        """Improve the policy with gradients from `compute_gradients`; returns statistics."""
        raise TypeError(f"{type(self).__name__} defines no apply_gradients()")

    def get_weights(self) -> Any:
        """The weights, in a form that `set_weights` takes."""
        return {}

    def set_weights(self, weights: Any) -> None:
        """Set the weights to what `get_weights` returned."""

    def get_state(self) -> dict[str, Any]:
        """Everything that a restored policy needs to act in the same way."""
        return {"weights": self.get_weights()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`."""
        self.set_weights(state["weights"])

    def is_recurrent(self) -> bool:
        """Whether the policy has a recurrent state."""
        return bool(self.get_initial_state())

    def get_initial_state(self) -> list[Array]:
        """The recurrent states at an episode's start, without a batch dimension."""
        return []


def state_names(columns: Iterable[str]) -> list[str]:
    """The names ``state_in_0``, ``state_in_1``, ... among these, in their order."""
    names = [name for name in columns if name.startswith(col.STATE_IN_PREFIX)]
    return sorted(names, key=lambda name: int(name.removeprefix(col.STATE_IN_PREFIX)))


def state_views(initial_state: Sequence[Any], max_seq_len: int) -> dict[str, ViewRequirement]:
    """Views of recurrent states, each the one after the previous step; a row for each sequence."""
    return {
        f"{col.STATE_IN_PREFIX}{k}": ViewRequirement(
            f"{col.STATE_OUT_PREFIX}{k}", shift=-1, batch_repeat_value=max_seq_len
        )
        for k in range(len(initial_state))
    }
