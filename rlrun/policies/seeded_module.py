"""Making a module whose initial weights follow from a seed alone."""

from typing import Any

import gymnasium as gym
import torch

from rlrun.config.schema import ModelConfig
from rlrun.policies.rl_module import ModuleFactory, RLModule


def seeded_module(
    factory: ModuleFactory,
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    model: ModelConfig,
    seed: int,
) -> RLModule:
    """What the factory makes of these, with torch's generator seeded."""
    torch.manual_seed(seed)
    # Orthogonal weights come out of LAPACK, whose last digits depend on the number of threads.
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return factory(observation_space, action_space, model)
    finally:
        torch.set_num_threads(num_threads)
