"""ParameterNoise: exploration by Gaussian noise in the weights that act.

Plappert et al. 2018, "Parameter Space Noise for Exploration", arXiv:1706.01905: actions are those
of the weights w + stddev z with z ~ N(0, 1) for each weight, the same z for a whole episode, so
that a state is always answered in the same way. After each fragment stddev is multiplied by 1.01
if the noise changes actions less than is aimed for, and divided by it otherwise (eq. 8):

    actions    distance of clean and perturbed policy     aimed for
    Discrete   KL(softmax Q || softmax Q perturbed)       -log(1 - epsilon + epsilon / n)
    Box        root mean square of the modes' difference  scale stddev of equal Gaussian noise

as in the paper's appendix C, on the observations of the fragment's last step. Parameters of
normalisation layers stay as they are. All slots of a policy in an env runner share one z; it is
drawn anew for the first fragment after an episode of the runner's first sub-environment has ended,
and each runner adapts a stddev of its own. A policy has the perturbed weights only while a fragment
is sampled. Must not import torch.

    B  rows    P  numbers that parametrise the action distribution of one row    n  actions
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlrun.data import columns as col
from rlrun.data.column_data import Array
from rlrun.policies.action_sampling import (
    ActionSampler,
    EpsilonGreedySampler,
    SamplingPolicy,
    log_softmax,
)
from rlrun.policies.exploration import ModeSampler, RandomSampler

FACTOR = 1.01


class ParameterNoise:
    """Noise in the weights of one policy of an env runner.

    Args:
        policy: whose weights are a flat vector.
        stddev: of the noise at the start.

    Attributes:
        seen: observations, or all views, of the last actions, on which the noise is adapted; None
            if there were none in this fragment.
    """

    def __init__(self, policy: SamplingPolicy, stddev: float) -> None:
        self._policy, self.stddev = policy, stddev
        self._seed: int | None = None  # of the present noise
        self._noise: Array | None = None  # z, as many as there are weights
        self._weights: Array | None = None  # the policy's own, while others act
        self.seen: Any = None

    def begin_fragment(self, rng: np.random.Generator) -> None:
        """Let perturbed weights act."""
        seed, self._weights = int(rng.integers(2**63)), self._policy.get_weights()
        if self._seed is None:
            self._seed, self._noise = seed, None
        if self._noise is None:
            drawn = np.random.default_rng(self._seed)
            self._noise = drawn.standard_normal(len(self._weights), np.float32)
            for place in self._policy.unperturbed:
                self._noise[place] = 0.0
        self._policy.set_weights(self._weights + np.float32(self.stddev) * self._noise)

    def end_fragment(self, *, renew: bool) -> None:
        """Let the policy have its own weights again, and adapt the noise.

        Args:
            renew: whether the next fragment is to have another z.
        """
        seen, self.seen = self.seen, None
        if self._weights is None:  # the fragment did not explore
            return
        perturbed = None if seen is None else self._inputs(seen)
        self._policy.set_weights(self._weights)
        self._weights = None
        if perturbed is not None:
            distances = action_distance(self._policy.sampler, self._inputs(seen), perturbed)
            if distances is not None:
                distance, target = distances
                self.stddev *= FACTOR if distance <= target else 1.0 / FACTOR
        if renew:
            self._seed = None

    def _inputs(self, seen: Any) -> Array:
        views = seen if isinstance(seen, Mapping) else {col.OBS: seen}
        _, _, extras = self._policy.compute_actions_from_input_dict(views, explore=False)
        return extras[col.ACTION_DIST_INPUTS]

    def get_state(self) -> dict[str, Any]:
        """The present noise, between fragments."""
        return {"stddev": self.stddev, "seed": self._seed}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`."""
        self.stddev, self._seed, self._noise = state["stddev"], state["seed"], None


def action_distance(
    sampler: ActionSampler, clean: Array, perturbed: Array
) -> tuple[float, float] | None:
    """How far a perturbation changes actions, and how far it is meant to.

    Args:
        clean, perturbed: what the policy puts out with either weights, ``[B, P]``.

    Returns:
        None while all actions are uniformly random.
    """
    if isinstance(sampler, RandomSampler):
        return None if sampler.random else action_distance(sampler.sampler, clean, perturbed)
    if isinstance(sampler, EpsilonGreedySampler):
        epsilon, count = sampler.epsilon, sampler.num_inputs
        if epsilon >= 1.0:
            return None
        return categorical_kl(clean, perturbed), -math.log(1.0 - epsilon + epsilon / count)
    assert isinstance(sampler, ModeSampler)
    difference = sampler.mode(clean).astype(np.float64) - sampler.mode(perturbed)
    return math.sqrt(float((difference**2).mean())), sampler.target_distance


def categorical_kl(logits: Array, others: Array) -> float:
    """The mean of KL(softmax of ``logits`` || softmax of ``others``) over rows ``[B, n]``."""
    first, second = (log_softmax(values.astype(np.float64)) for values in (logits, others))
    return float((np.exp(first) * (first - second)).sum(axis=1).mean())
