"""A batch that has every column a real one will have, without an environment.

A policy acts on observations of zeros for a few steps, in which one episode ends and another one
does not; a collector makes the batch. Knows nothing of losses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
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
    viewed: frozenset[str]
    """Columns that some view is made of."""
    derived: frozenset[str]
    """Columns that follow from others (`Policy.fragment_columns`)."""


def dummy_batch(policy: Policy, observation_space: gym.Space[Any]) -> DummyBatch:
    """The batch of 16 steps in two lanes; observations, rewards and infos are zeros or empty."""
    assert observation_space.shape is not None  # preprocessed observations are arrays
    inputs = PolicyInputs(policy, _LANES)
    collector = ColumnarCollector(_LANES, observation_space.shape, observation_space.dtype)
    collector.set_views(inputs.views, inputs.rows)
    collector.begin_fragment(_LENGTH, np.arange(_LANES))
    lanes, nothing = np.arange(_LANES), np.zeros_like(collector.obs)
    collector.add_init_obs(lanes, lanes, nothing)
    put_out: set[str] = set()
    never = np.zeros(_LANES, np.bool_)
    for t in range(_LENGTH):
        if inputs.views is None:
            actions, _, extras = policy.compute_actions(collector.obs, explore=False)
        else:
            actions, extras = inputs.act(
                collector.get_inference_input_dict(), explore=False, noise=None
            )
        put_out.update(extras)
        ended = lanes == 0 if t == _LENGTH // 2 else never
        collector.add_step(actions, extras, np.zeros(_LANES), ended, never, nothing)
        if ended.any():
            collector.end_episodes(lanes[ended])
            collector.add_init_obs(lanes[ended], lanes[ended] + _LANES, nothing[ended])
    derived: set[str] = set()

    def further_columns(columns: dict[str, Any]) -> dict[str, Any]:
        found = policy.fragment_columns(columns)
        derived.update(found)
        return found

    batch = collector.build(further_columns=further_columns)
    viewed = set() if inputs.views is None else inputs.views.sources | {col.OBS}
    return DummyBatch(batch, frozenset(put_out), frozenset(viewed), frozenset(derived))
