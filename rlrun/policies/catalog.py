"""Modules made from a `model` section: rlrun's own, with or without a memory, or the user's.

Owns which module a section describes. Must not know of algorithms.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import torch
from torch import nn

from rlrun.config.problems import misfit
from rlrun.config.registry import import_object
from rlrun.config.schema import ModelConfig
from rlrun.data.seeding import GENERATORS_LOCK
from rlrun.policies.attention import AttentionActorCritic
from rlrun.policies.masked_module import ModuleFactory, with_action_mask
from rlrun.policies.policy import state_views
from rlrun.policies.recurrent import RecurrentActorCritic
from rlrun.policies.rl_module import ActorCritic, RLModule

MEMORIES: dict[str, type[RLModule]] = {
    "use_lstm": RecurrentActorCritic,
    "use_gru": RecurrentActorCritic,
    "use_attention": AttentionActorCritic,
}
"""Settings of the `model` section that give the networks a memory, and the module that has it."""


def build_module(
    observation_space: gym.Space[Any], action_space: gym.Space[Any], model: ModelConfig
) -> RLModule:
    """The module that a `model` section describes, on the CPU, with freshly drawn weights.

    ``model.use`` names an `RLModule` subclass, or a ``torch.nn.Module`` that only encodes: it is
    constructed with the observation space and the section's further keys, maps observations
    [N, ...] (float32; images scaled to [0, 1]) to features [N, output_size] and says that
    ``output_size``; the two heads are added to it. The module's states are among its views.

    Raises:
        ConfigError: when ``model.use`` names neither, or there are no layers for a setting.
    """
    named = None if model.use is None else import_object(model.use)
    if isinstance(named, type) and issubclass(named, RLModule):
        if model.privileged:
            message = f"{model.use} sees whole observations and chooses its inputs itself"
            raise misfit("model.privileged", f"{message}; remove this key")
        module = named(observation_space, action_space, model, **model.arguments())
    elif named is None or (isinstance(named, type) and issubclass(named, nn.Module)):
        kind: type[RLModule] = ActorCritic
        for switch, with_memory in MEMORIES.items():
            kind = with_memory if getattr(model, switch) else kind
        if model.privileged and model.share_layers:
            message = "with model.privileged the policy has an encoder of its own; remove this key"
            raise misfit("model.share_layers", message)
        module = kind(observation_space, action_space, model)
    else:
        message = f"{model.use} is a subclass of neither rlrun.RLModule nor torch.nn.Module"
        raise misfit("model.use", message)
    views = state_views(module.initial_state(), model.max_seq_len)
    module.view_requirements = {**views, **module.view_requirements}
    return module


def seeded_module(
    factory: ModuleFactory,
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    model: ModelConfig,
    seed: int,
) -> RLModule:
    """A module whose initial weights follow from the seed alone."""
    with seeded_torch(seed):
        return with_action_mask(factory, observation_space, action_space, model)


@contextmanager
def seeded_torch(seed: int) -> Iterator[None]:
    """Seed torch's generator for the ``with`` block, in which initial weights are drawn."""
    with GENERATORS_LOCK, torch.random.fork_rng(devices=[]):
        # Orthogonal weights come out of LAPACK, whose last digits depend on the number of threads.
        num_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            torch.set_num_threads(num_threads)
