"""Acting with SAC's policy: in numpy for MLPs, with torch for everything else.

Must not import torch: Ray actors act with the numpy policy.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from rlrun.config.problems import misfit
from rlrun.config.schema import ExplorationConfig, ModelConfig
from rlrun.data.nested import space_without_mask
from rlrun.policies.action_sampling import (
    IN_OTHER_SPACES,
    ActionSampler,
    SamplingPolicy,
    SquashedGaussianSampler,
    action_layout,
    action_sampler,
)
from rlrun.policies.exploration import OWN, exploring_sampler, lasting_noise, weight_stddev
from rlrun.policies.exploration_strategy import exploring
from rlrun.policies.layers import check_state_noise, sac_network
from rlrun.policies.numpy_policy import FlatArrays, MLPPolicy, NumpyMLP
from rlrun.policies.policy import Policy
from rlrun.policies.privileged import PolicyInput


def sac_sampler(space: gym.Space[Any]) -> ActionSampler:
    """The sampler of SAC's actions; raises ConfigError for a space that SAC cannot act in."""
    if isinstance(space, gym.spaces.Discrete):
        return action_sampler(space)
    if isinstance(space, gym.spaces.Box) and space.dtype.kind == "f" and space.is_bounded():
        return SquashedGaussianSampler(action_layout(space).num_columns)
    message = f"SAC needs Discrete actions or a bounded Box of floats, this environment has {space}"
    raise misfit("env", f"{message}; {IN_OTHER_SPACES}")


def build_sac_policy(
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    model: ModelConfig,
    *,
    exploration: ExplorationConfig = OWN,
    noise_correlation: float = 0.0,
    device: str | None = None,
) -> Policy:
    """The policy a runner acts with: numpy for MLPs, torch elsewhere or on a device that is named.

    Raises:
        ConfigError: SAC cannot act in this space, or not with noise that lasts.
    """
    sampler = sac_sampler(action_space)
    check_state_noise(action_layout(action_space), model)
    if noise_correlation and not isinstance(sampler, SquashedGaussianSampler):
        message = f"noise that lasts needs a Box of floats, this environment has {action_space}"
        raise misfit("training.noise_correlation", message)
    sampler = exploring_sampler(sampler, exploration, action_space)
    spaces = observation_space, action_space
    # Without log-probabilities: when rows are replayed, the policy is another.
    how: dict[str, Any] = {"sampler": sampler, "with_logp": False}
    if device is None and MLPPolicy.supports(observation_space, model):
        seen = PolicyInput(space_without_mask(observation_space), model.privileged).space
        layers = sac_network(gym.spaces.flatdim(seen), sampler.num_inputs, model)
        network = NumpyMLP(FlatArrays(layers), "pi")
        policy: SamplingPolicy = MLPPolicy(*spaces, model, network=network, **how)
    else:
        from rlrun.policies.masked_module import with_action_mask
        from rlrun.policies.soft_actor_critic import SACPolicyNetwork
        from rlrun.policies.torch_policy import TorchPolicy

        module = with_action_mask(SACPolicyNetwork, *spaces, model)
        policy = TorchPolicy(*spaces, model, module=module, device=device or "cpu", **how)
    policy.let_noise_last(noise_correlation or lasting_noise(exploration))
    policy.weight_stddev = weight_stddev(exploration)
    return exploring(policy, exploration)
