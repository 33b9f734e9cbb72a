"""Acting by action values, epsilon-greedily: in numpy for MLPs, with torch for everything else.

Noisy weights are drawn when a fragment begins and kept for its length, the same in all slots;
without exploration, and in evaluations, policies act with their means. Must not import torch.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from rlrun.config.problems import ConfigError, Origin, Problem
from rlrun.config.schema import ModelConfig
from rlrun.policies.action_sampling import EpsilonGreedySampler
from rlrun.policies.layers import NumpyQNetwork, QOptions, q_network
from rlrun.policies.numpy_policy import MLPPolicy
from rlrun.policies.policy import Policy


def build_q_policy(
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    model: ModelConfig,
    *,
    options: QOptions,
) -> Policy:
    """The policy a runner acts with: numpy for MLPs, torch elsewhere.

    Raises:
        ConfigError: the actions are not Discrete.
    """
    if not isinstance(action_space, gym.spaces.Discrete):
        message = f"action values need a Discrete action space, this environment has {action_space}"
        raise ConfigError([Problem(Origin("this environment"), "env", message)])
    spaces, num_actions = (observation_space, action_space), int(action_space.n)
    sampler = EpsilonGreedySampler(num_actions)
    if MLPPolicy.supports(observation_space, model):
        layers = q_network(gym.spaces.flatdim(observation_space), num_actions, model, options)
        network = NumpyQNetwork(layers, num_actions, options)
        return MLPPolicy(*spaces, model, network=network, sampler=sampler)
    from rlrun.policies.q_network import build_q_network
    from rlrun.policies.torch_policy import TorchPolicy

    module = build_q_network(*spaces, model, options=options)
    return TorchPolicy(*spaces, model, module=module, sampler=sampler)
