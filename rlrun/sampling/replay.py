"""Bringing environments back to where they were, from nothing but seeds and actions.

An episode is a function of the seed it was reset with and of its actions; that is all a checkpoint
needs to hold of an environment that cannot be saved itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.envs.episode_vector_env import EpisodeVectorEnv

Array = NDArray[Any]


def replay_episodes(
    envs: EpisodeVectorEnv,
    to_env: Callable[[Array], Any],
    seeds: Sequence[int],
    actions: Sequence[Array | None],
) -> Any:
    """Reset each lane with its seed and repeat its actions; returns the observations ``[B, ...]``.

    Lanes step together, so a lane with fewer actions starts later: all arrive at the same step.
    Until then it idles, on whatever episode.

    Args:
        to_env: from the policy's actions ``[B, ...]`` to the environments'.
        actions: for each lane the policy's actions ``[n, ...]``, or None for none.
    """
    lengths = np.array([0 if part is None else len(part) for part in actions])
    horizon = int(lengths.max(initial=0))
    observations = envs.reset(seeds)
    if horizon == 0:
        return observations
    template = next(part for part in actions if part is not None)
    table = np.broadcast_to(template[0], (horizon, len(seeds), *template.shape[1:])).copy()
    for lane, part in enumerate(actions):
        if part is not None:
            table[horizon - len(part) :, lane] = part
    starts = horizon - lengths
    for step in range(horizon):
        starting = starts == step
        if step and starting.any():
            envs.reset_lanes(starting, seeds)
        observations, _, terminateds, truncateds, _ = envs.step(to_env(table[step]))
        ended_idle = (terminateds | truncateds) & (step < starts)
        if ended_idle.any():
            envs.reset_lanes(ended_idle, seeds)
    unstarted = starts == horizon
    if unstarted.any():
        observations = envs.reset_lanes(unstarted, seeds)
    return observations


def differing_rows(found: Array, expected: Array) -> Array:
    """Bool [n]: which rows of two arrays [n, ...] are not equal in every element."""
    return (found != expected).reshape(len(found), -1).any(axis=1)
