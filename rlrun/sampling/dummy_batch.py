"""A batch that has every column a real one will have, without an environment.

A policy acts on observations of zeros for a few steps, in which one episode ends and another one
does not; a collector makes the batch. Knows nothing of losses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.data.sample_batch import SampleBatch
from rlrun.data.trajectory_views import View
from rlrun.policies.policy import Policy
from rlrun.sampling.columnar_collector import ColumnarCollector
from rlrun.sampling.policy_inputs import PolicyInputs

_LANES, _LENGTH = 2, 16


@dataclass(frozen=True)
class DummyBatch:
    """See the module."""

    batch: SampleBatch
    """N = 32 rows."""
    put_out: frozenset[str]
    """Columns that the policy put out besides actions."""
    views: tuple[View, ...]
    """What the policy asks for; nothing where it sees the present observation alone."""
    not_for_training: frozenset[str]
    """Columns that are there for postprocessing alone."""
    derived: frozenset[str]
    """Columns that follow from others (`Policy.fragment_columns`)."""


def dummy_batch(
    policy: Policy, observation_space: gym.Space[Any], *, explore: bool = True
) -> DummyBatch:
    """The batch of 16 steps in two lanes; observations, rewards and infos are zeros or empty.

    Args:
        explore: whether the policy explores; if it has views, it acts in the other way as well.
    """
    assert observation_space.shape is not None  # preprocessed observations are arrays
    inputs = PolicyInputs(policy, _LANES)
    collector = ColumnarCollector(_LANES, observation_space.shape, observation_space.dtype)
    collector.set_views(inputs.views, inputs.rows)
    collector.begin_fragment(_LENGTH)
    lanes, nothing = np.arange(_LANES), np.zeros_like(collector.obs)
    collector.begin_episodes(lanes, lanes, nothing)
    put_out: set[str] = set()
    never = np.zeros(_LANES, np.bool_)
    noise = policy.draw_noise(np.random.default_rng(0), _LENGTH, _LANES)
    for t in range(_LENGTH):
        noise_row = None if noise is None else noise[t]
        if inputs.views is None:
            actions, _, extras = policy.compute_actions(
                collector.obs, explore=explore, noise=noise_row
            )
        else:
            seen = collector.inputs()
            inputs.act(seen, explore=not explore, noise=noise_row)
            actions, extras = inputs.act(seen, explore=explore, noise=noise_row)
        put_out.update(extras)
        ended = lanes == 0 if t == _LENGTH // 2 else never
        collector.add_step(actions, extras, np.zeros(_LANES), ended, never, nothing)
        if ended.any():
            collector.end_episodes(lanes[ended])
            collector.begin_episodes(lanes[ended], lanes[ended] + _LANES, nothing[ended])
    derived: set[str] = set()

    def further_columns(columns: dict[str, Any]) -> dict[str, Any]:
        found = policy.fragment_columns(columns)
        derived.update(found)
        return found

    return DummyBatch(
        collector.build(further_columns=further_columns),
        put_out=frozenset(put_out),
        views=() if inputs.views is None else tuple(inputs.views.views),
        not_for_training=inputs.leave_out,
        derived=frozenset(derived),
    )
