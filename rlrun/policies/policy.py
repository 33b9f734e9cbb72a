"""Policy: what an env runner acts with. Knows nothing of torch, Ray or YAML.

A subclass may be anything that maps observations to actions; the two that rlrun ships are
`MLPPolicy` (plain numpy) and `TorchPolicy` (any `RLModule`), with a network and a sampler each.

    B  rows of a batch: one for each slot that needs an action
    P  numbers that parametrise the action distribution of one row
    K  random numbers that one action takes
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
    """What an env runner, which owns the environments, uses to choose actions.

    Only `compute_actions` must be written; a policy without weights keeps the other defaults.

    Attributes:
        view_requirements: views that the policy acts on and learns from, by name. May be edited at
            any time: a runner looks at it when a fragment begins.
        unread_views: views that the policy does not read when it acts, though it could; they are
            not gathered for it.
        explores: whether actions are sampled where a caller leaves it to the policy; an env runner
            sets it to `env_runners.explore`.
        draws_for_fragments: whether `begin_fragment` does something.
        noise_correlation: how much of a step's noise lasts into the next, in [0, 1), or 0 for the
            first random steps of a run; a policy that ever has some begins with it: what
            `draw_noise` returns must be standard normal then, and the policy is given the
            autoregressive process that `sampling.action_noise` makes of it.
    """

    view_requirements: dict[str, ViewRequirement]
    unread_views: frozenset[str] = frozenset()
    explores = True
    draws_for_fragments = False
    noise_correlation = 0.0

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
        explore: bool | None = True,
        noise: Array | None = None,
    ) -> tuple[Array, list[Array], dict[str, Array]]:
        """Choose one action per row.

        Args:
            obs_batch: preprocessed observations, ``[B, ...]``.
            state_batches: recurrent states, each ``[B, ...]``; empty for feed-forward policies.
            explore: sample (True) or take the most likely action (False); None is `explores`.
            noise: ``[B, K]``, one row of what `draw_noise` returned, or of the process that
                `noise_correlation` makes of it; None draws fresh numbers.

        Returns:
            Actions ``[B, ...]``, the new states, and extra values that become batch columns.
        """
        raise TypeError(f"{type(self).__name__} must define compute_actions()")

    def compute_actions_from_input_dict(
        self,
        input_dict: Mapping[str, Array],
        *,
        explore: bool | None = True,
        noise: Array | None = None,
    ) -> tuple[Array, list[Array], dict[str, Array]]:
        """Choose one action per row, from all views that the policy acts on.

        The default hands observations and states (``state_in_k``) to `compute_actions`; a policy
        with further views takes them here.

        Args:
            input_dict: name of the view -> ``[B, ...]``, or ``[B, n, ...]`` with a time axis.
        """
        states = [input_dict[name] for name in state_names(input_dict)]
        return self.compute_actions(input_dict[col.OBS], states, explore=explore, noise=noise)

    def draw_noise(self, rng: np.random.Generator, length: int, slots: int) -> Array | None:
        """All random numbers of a fragment, ``[length, slots, K]``; None if it uses none."""
        return None

    def begin_fragment(self, rng: np.random.Generator) -> None:
        """Draw what stays the same for a whole fragment, such as the noise of noisy weights."""

    def set_exploration(self, settings: Mapping[str, float]) -> None:
        """Set how far exploring actions deviate from the best ones, by name."""

    def fragment_columns(
        self, columns: Mapping[str, Array], *, explore: bool = True
    ) -> dict[str, Array]:
        """Columns that follow from a finished fragment's columns, computed once for all its rows.

        Args:
            columns: actions and the further outputs of `compute_actions`, each ``[N, ...]``.
            explore: how the actions were chosen.
        """
        return {}

    def postprocess_trajectory(
        self, batch: Any, other_agent_batches: Mapping[Any, Any] | None = None, episode: Any = None
    ) -> Any:
        """Edit one agent's chunk of one episode before it enters the train batch.

        Args:
            other_agent_batches: agent -> policy id, policy and chunk of the same episode, of the
                other agents; rows go together by ``t``.
            episode: its id, the `eps_id` of the rows.
        """
        return batch

    def learn_on_batch(self, batch: Any) -> dict[str, Any]:
        """Improve the policy with ``batch`` and return statistics."""
        return {}

    def compute_gradients(self, batch: Any) -> tuple[Any, dict[str, Any]]:
        """Gradients of the policy's loss on a batch, for `apply_gradients`, and statistics."""
        raise TypeError(f"{type(self).__name__} defines no compute_gradients()")

    def apply_gradients(self, gradients: Any) -> dict[str, Any]:
        """Improve the policy with what `compute_gradients` returned; statistics."""
        raise TypeError(f"{type(self).__name__} defines no apply_gradients()")

    def get_weights(self) -> Any:
        """The weights, in a form that `set_weights` takes."""
        return {}

    def set_weights(self, weights: Any) -> None:
        """Set the weights to what `get_weights` returned."""

    def get_state(self) -> dict[str, Any]:
        """Everything that a restored policy needs to act the same."""
        return {"weights": self.get_weights()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`."""
        self.set_weights(state["weights"])

    def is_recurrent(self) -> bool:
        """Whether the policy has a state that goes from step to step."""
        return bool(self.get_initial_state())

    def get_initial_state(self) -> list[Array]:
        """The state at an episode's start, one array per state, without batch dimension."""
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
