"""A tiny experiment of every algorithm, and the part of its results that a seed decides."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from rlrun.algorithms.a2c import A2CConfig
from rlrun.algorithms.a3c import A3CConfig
from rlrun.algorithms.appo import APPOConfig
from rlrun.algorithms.dqn import DQNConfig
from rlrun.algorithms.impala import IMPALAConfig
from rlrun.algorithms.pg import PGConfig
from rlrun.algorithms.ppo import PPOConfig
from rlrun.algorithms.result import is_wall_clock
from rlrun.algorithms.sac import SACConfig

BATCH = 32
TINY = {"train_batch_size": BATCH, "minibatch_size": 16, "num_epochs": 2}
REPLAY = {
    "train_batch_size": BATCH,
    "minibatch_size": 16,
    "num_steps_sampled_before_learning_starts": 10,
    "training_intensity": 2,  # 4 updates an iteration
}
BUFFER = {"capacity": 75, "prioritized": True, "store_in_checkpoints": True}
LSTM = {
    "use_lstm": True,
    "lstm_cell_size": 8,
    "max_seq_len": 7,
    "lstm_use_prev_action": True,
    "lstm_use_prev_reward": True,
}
ATTENTION = {
    "use_attention": True,
    "attention_dim": 8,
    "attention_memory": 6,
    "max_seq_len": 7,
    "attention_use_n_prev_actions": 2,
    "attention_use_n_prev_rewards": 2,
}
ALGORITHMS = {
    "PPO": lambda: PPOConfig().training(**TINY),
    "PPO, LSTM": lambda: PPOConfig().training(**TINY).model(hidden=[8], **LSTM),
    "PPO, GRU": lambda: (
        PPOConfig().training(**TINY).model(hidden=[8], use_gru=True, lstm_cell_size=8)
    ),
    "PPO, attention": lambda: PPOConfig().training(**TINY).model(hidden=[8], **ATTENTION),
    "A2C": lambda: A2CConfig().training(train_batch_size=BATCH, microbatch_size=12),
    "PG": lambda: PGConfig().training(train_batch_size=BATCH),
    "A3C": lambda: A3CConfig().training(train_batch_size=BATCH),
    "IMPALA": lambda: IMPALAConfig().training(**TINY, broadcast_interval=2),
    "IMPALA, LSTM": lambda: (
        IMPALAConfig().training(**TINY, optimizer="rmsprop").model(hidden=[8], **LSTM)
    ),
    "APPO": lambda: (
        APPOConfig()
        .training(**TINY, kl_coeff=0.5, target_network_update_freq=3)
        .training(circular_buffer_num_batches=2, circular_buffer_iterations_per_batch=3)
    ),
    "DQN": lambda: (
        DQNConfig()
        .training(**REPLAY, n_step=3, target_network_update_freq=25)
        .exploration(epsilon=[[0, 1.0], [128, 0.1]])
        .replay(**BUFFER)
    ),
    "Rainbow": lambda: (
        DQNConfig()
        .training(**REPLAY, n_step=3, num_atoms=7, noisy=True, target_network_update_freq=25)
        .exploration(epsilon=0)
        .replay(**BUFFER)
    ),
    "DQN, GRU": lambda: (
        DQNConfig()
        .training(**REPLAY, n_step=2, value_rescaling=True, target_network_update_freq=25)
        .model(hidden=[8], use_gru=True, lstm_cell_size=8, max_seq_len=5)
        .replay(**BUFFER, burn_in=3)
    ),
    "SAC": lambda: SACConfig().training(**REPLAY, n_step=2).model(hidden=[16]).replay(**BUFFER),
}
LOCKSTEP = "DQN, lockstep"  # for several policies alone
CONFIGS = {
    **ALGORITHMS,
    LOCKSTEP: lambda: (
        DQNConfig()
        .training(**REPLAY, n_step=2)
        .replay(capacity=75, store_in_checkpoints=True, mode="lockstep")
    ),
}
SEVERAL_AGENTS = "MultiAgentCartPole"
EACH = {"policies": ["agent_0", "agent_1"]}
SHORT = {"use": "Pendulum-v1", "max_episode_steps": 30}  # its own 200 steps outlast most tests
FILTERED = {
    "env_runners": {"observation_filter": "MeanStdFilter"},
    "connectors": {"normalize_rewards": True},
}


def build(name, env="CartPole-v1", *, runners=0, num_envs=2, seed=5, **sections):
    """Build an algorithm of `CONFIGS`; where there are several agents each has its own policy.

    Args:
        sections: further settings, by section.
    """
    if env == SEVERAL_AGENTS:
        sections = {"multi_agent": EACH, **sections}
    if env == "Pendulum-v1":
        env = SHORT
    config = (
        CONFIGS[name]()
        .environment(env)
        .env_runners(
            num_env_runners=runners, num_envs_per_env_runner=num_envs, num_cpus_per_env_runner=0.1
        )
        .debugging(seed=seed)
    )
    for section, values in sections.items():
        config = getattr(config, section)(**values)
    return config.build()


def train(algorithm, iterations):
    """The seeded parts of so many results."""
    return [seeded_part(algorithm.train()) for _ in range(iterations)]


def learner_stats(algorithm):
    """Of the only policy, after one iteration more."""
    return algorithm.train()["learners"]["default_policy"]["learner_stats"]


def assert_equal_weights(one, other):
    """To the bit; each is an algorithm or its weights."""
    first, second = (x if isinstance(x, dict) else x.get_weights() for x in (one, other))
    assert first.keys() == second.keys()
    for key, value in first.items():
        np.testing.assert_array_equal(value, second[key])


def flat(result: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """``a/b/c`` and value of each leaf."""
    for key, value in result.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def seeded_part(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result without what the clock says."""
    return {key: value for key, value in flat(result) if not is_wall_clock(key)}


class DropsOut(torch.nn.Module):
    """Half of the features, while it learns."""

    output_size = 16

    def __init__(self, observation_space):
        super().__init__()
        self.layer, self.dropout = torch.nn.Linear(4, 16), torch.nn.Dropout(0.5)

    def forward(self, obs):
        return self.dropout(self.layer(obs))


class Normalises(torch.nn.Module):
    """The features of each batch have mean 0 and deviation 1, while it learns."""

    output_size = 16

    def __init__(self, observation_space, momentum=0.1):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4, momentum=momentum)
        self.layer = torch.nn.Linear(4, 16)

    def forward(self, obs):
        return self.layer(self.norm(obs))


class HasMask(torch.nn.Module):
    """A buffer is infinite, as masks of attention are."""

    output_size = 16

    def __init__(self, observation_space):
        super().__init__()
        self.layer = torch.nn.Linear(4, 16)
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

    def forward(self, obs):
        return torch.tanh(self.layer(obs)) * self.mask.softmax(-1)[0]


class CannotBeBuilt(torch.nn.Module):
    def __init__(self, observation_space):
        raise KeyError("its network")
